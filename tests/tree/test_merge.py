"""Two drafters' candidates in one tree: the best of either, each path once."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterforge.drafter.retrieval import Candidates
from drafterforge.tree.grow import TreeShape
from drafterforge.tree.merge import Others, merged_tree

ROOT = 7


def paths_of(tokens, parents, scores) -> dict[tuple[int, ...], float]:
    """Scores by the tokens from the root on."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((found[parent] if parent >= 0 else ()) + (token,))
    return dict(zip(found, scores, strict=True))


def draw_candidates(seed: int, size: int) -> Candidates:
    """A random tree of few tokens, so that two of them share paths; scores on a coarse grid, so that ties abound."""
    generator = torch.Generator().manual_seed(seed)
    nodes: list[tuple[int, int, int, float]] = []
    for _ in range(size):
        parent = int(torch.randint(-1, len(nodes), (), generator=generator))
        token = int(torch.randint(0, 3, (), generator=generator))
        if any(token == other and parent == above for other, above, *_ in nodes):
            continue
        level, score = (nodes[parent][2], nodes[parent][3]) if parent >= 0 else (0, 0.0)
        step = 0.5 * int(torch.randint(0, 4, (), generator=generator))
        nodes.append((token, parent, level + 1, score - step))
    order = sorted(range(len(nodes)), key=lambda place: nodes[place][2])
    place = {-1: -1} | {old: new for new, old in enumerate(order)}
    picked = [nodes[old] for old in order]
    return Candidates(
        [one[0] for one in picked],
        [place[one[1]] for one in picked],
        [one[2] for one in picked],
        [one[3] for one in picked],
    )


def merge(rows: list[tuple[Candidates, Candidates]], num_tokens: int, floor: float = -math.inf):
    """The trees of rows whose two drafters propose as many candidates each."""
    first = [torch.tensor([list(part) for part in zip(*(row[0] for row in rows), strict=True)][n]) for n in (0, 3, 1)]
    levels = torch.tensor(rows[0][0].levels)
    return merged_tree(
        torch.full((len(rows),), ROOT), *first, levels, num_tokens, Others([row[1] for row in rows], floor)
    )


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.integers(1, 14), st.integers(0, 14)),
    budget=st.integers(1, 30),
    floor=st.sampled_from([-math.inf, -2.0, -0.5, 0.1]),
)
def test_the_best_paths_of_both_are_kept_once_with_their_ancestors(seed, sizes, budget, floor):
    one, two = draw_candidates(seed, sizes[0]), draw_candidates(seed + 1, sizes[1])
    tree = merge([(one, two)], budget, floor)
    tokens, parents, levels = (part[0].tolist() for part in (tree.tokens, tree.parents, tree.levels))
    assert (tokens[0], parents[0], levels[0]) == (ROOT, 0, 0)
    assert all(levels[node] == levels[parents[node]] + 1 and parents[node] < node for node in range(1, len(tokens)))
    scores = paths_of(one.tokens, one.parents, one.scores)
    for path, score in paths_of(two.tokens, two.parents, two.scores).items():
        scores[path] = max(score, scores.get(path, -math.inf))
    kept = list(paths_of(tokens[1:], [parent - 1 for parent in parents[1:]], levels[1:]))
    assert len(kept) == len(set(kept)) == min(budget - 1, sum(score >= floor for score in scores.values()))
    left = [score for path, score in scores.items() if path not in kept and score >= floor]
    assert not left or not kept or min(scores[path] for path in kept) >= max(left)


def test_trees_of_rows_are_padded_to_the_largest():
    chain = Candidates([1, 2], [-1, 0], [1, 2], [-0.1, -0.2])
    longer = Candidates([1, 2, 5, 6], [-1, 0, 1, 2], [1, 2, 3, 4], [-0.3, -0.4, -0.5, -0.6])
    tree = merge([(chain, Candidates([], [], [], [])), (chain, longer)], 9)
    assert tree.tokens.tolist() == [[ROOT, 1, 2, 0, 0], [ROOT, 1, 2, 5, 6]]
    assert tree.parents.tolist() == [[0, 0, 1, 3, 4], [0, 0, 1, 2, 3]]  # padding is its own parent
    assert tree.levels.tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize(("first", "second"), list(product([-0.1, -0.9], repeat=2)))
def test_a_path_of_both_has_the_better_score(first, second):
    one, two = (Candidates([1], [-1], [1], [score]) for score in (first, second))
    assert merge([(one, two)], 5, floor=-0.5).tokens.shape[1] == (2 if max(first, second) > -0.5 else 1)


def test_candidates_of_a_row_that_ended_early_are_not_kept():
    ended = Candidates([1, 2], [-1, 0], [1, 2], [-0.1, -math.inf])
    assert merge([(ended, Candidates([], [], [], []))], 9).tokens.tolist() == [[ROOT, 1]]


def test_a_budget_of_one_is_the_root_alone():
    chain = Candidates([1, 2], [-1, 0], [1, 2], [-0.1, -0.2])
    assert merge([(chain, chain)], TreeShape(1, 3, 2).num_tokens).tokens.tolist() == [[ROOT]]
