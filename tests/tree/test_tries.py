"""Tries merged on the device give the trees that `merge.likeliest` builds node by node."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafterforge.kernels.candidates import Candidates
from drafterforge.tree.evidence import SEPARATOR, Evidence
from drafterforge.tree.grow import TreeShape
from drafterforge.tree.merge import DrafterCandidates, likeliest
from drafterforge.tree.tries import MergeRule, Tries, merge_tries, pack_tries

VOCABULARY = 12


def random_pool(generator: torch.Generator, batch: int, top_k: int, depth: int) -> Candidates:
    """A drafter's candidates."""
    pool = Candidates(batch, 0, None)
    beam = 1
    for _ in range(depth):
        logits = 2.0 * torch.randn(batch, beam, VOCABULARY, generator=generator)
        pool.level(logits, top_k, top_k)
        beam = top_k
    return pool


def random_evidence(rng: np.random.Generator, depth: int) -> Evidence:
    """Occurrences of a few continuations, some of which end early."""
    occurrences = []
    for _ in range(rng.integers(0, 7)):
        ahead = rng.integers(0, VOCABULARY, rng.integers(0, depth + 1)).tolist()
        occurrences.append((float(rng.uniform(0.2, 3.0)), [*ahead, SEPARATOR]))
    return Evidence.of(occurrences, doubt=float(rng.uniform(0.3, 2.0)), length_weight=1.5)


def paths_of(tokens, parents) -> set[tuple[int, ...]]:
    """The paths of a tree's nodes, without those that pad it."""
    paths = {0: ()}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if node and parent != node:
            paths[node] = (*paths[parent], token)
    return set(paths.values())


@pytest.mark.parametrize("min_probability", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("num_tokens", [2, 6, 20])
@pytest.mark.parametrize("seed", range(3))
def test_merged_tries_equal_the_likeliest_nodes(seed, num_tokens, drafts, min_probability):
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    batch, top_k, depth, trust = 5, 3, 4, 2.0
    pool = random_pool(generator, batch, top_k, depth)
    evidence = [random_evidence(rng, depth) for _ in range(batch)]
    rules = [MergeRule(trust, min_probability, drafts, 0.0, 1.0)] * batch
    shapes = [TreeShape(num_tokens, depth, top_k)] * batch
    tries = Tries.unpack(pack_tries(evidence, rules, shapes, capacity=40))
    root = torch.arange(batch) + 100
    pooled = pool.tokens, pool.scores, pool.parents
    tree = merge_tries(root, *pooled, pool.levels, tries, num_tokens, depth)
    assert tree.tokens[:, 0].tolist() == root.tolist()
    for row in range(batch):
        candidates = DrafterCandidates(*(part[row] for part in pooled)) if drafts else None
        nodes = likeliest(evidence[row], num_tokens, top_k, min_probability, candidates, trust)
        expected = paths_of([0, *nodes.tokens], [0, *nodes.parents])
        parents = tree.parents[row].tolist()
        assert paths_of(tree.tokens[row].tolist(), parents) == expected
        depths = {0: 0}
        for node, parent in enumerate(parents[1:], start=1):
            assert parent <= node
            depths[node] = 0 if parent == node else depths[parent] + 1
        assert tree.levels[row].tolist() == list(depths.values())


def test_a_row_without_evidence_keeps_the_drafter_s_tree():
    pool = random_pool(torch.Generator().manual_seed(1), 2, 3, 3)
    rules, shapes = [MergeRule(1.0, 0.0, True, 0.0, 1.0)] * 2, [TreeShape(8, 3, 3)] * 2
    tries = Tries.unpack(pack_tries([None, None], rules, shapes, capacity=8))
    root = torch.tensor([1, 2])
    tree = merge_tries(root, pool.tokens, pool.scores, pool.parents, pool.levels, tries, 8, 3)
    tokens, parents, levels = pool.cut(root, 8)
    assert torch.equal(tree.tokens, tokens) and torch.equal(tree.parents, parents) and torch.equal(tree.levels, levels)


def test_the_size_of_a_row_is_a_limit():
    pool = random_pool(torch.Generator().manual_seed(1), 2, 3, 3)
    rules, shapes = [MergeRule(1.0, 0.0, True, 0.0, 1.0)] * 2, [TreeShape(8, 3, 3)] * 2
    tries = Tries.unpack(pack_tries([None, None], rules, shapes, capacity=8))
    root, sizes = torch.tensor([1, 2]), torch.tensor([1, 5])
    tree = merge_tries(root, pool.tokens, pool.scores, pool.parents, pool.levels, tries, 8, 3, sizes)
    assert (tree.parents[:, 1:] != torch.arange(1, 8)).sum(dim=1).tolist() == [0, 4]
