"""Laws of the draft tree: closure, order, masks, acceptance."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterforge.tree.accept import accepted_path
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask, cut_tree, root_only, top_children


def random_pool(seed: int, k: int, depth: int, step: float):
    """Tokens, scores, parents and levels of a pool with scores on a coarse grid, so that ties abound."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: -(torch.rand(*shape, generator=generator) / step).floor() * step  # noqa: E731
    scores, parents, levels = [draw(k)], [torch.full((k,), -1)], [torch.ones(k, dtype=torch.long)]
    beam, beam_scores, size = torch.arange(k), scores[0], k
    for level in range(2, depth + 1):
        cumulative = (beam_scores[:, None] + draw(k, k)).flatten()
        scores.append(cumulative)
        parents.append(beam.repeat_interleave(k))
        levels.append(torch.full((k * k,), level))
        best = cumulative.sort(descending=True, stable=True).indices[:k]
        beam, beam_scores, size = size + best, cumulative[best], size + k * k
    tokens = torch.arange(size) + 100
    return tokens, torch.cat(scores), torch.cat(parents), torch.cat(levels)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 5),
    depth=st.integers(1, 5),
    budget=st.integers(1, 90),
    step=st.sampled_from([0.05, 0.5, 2.0]),
)
def test_a_cut_tree_is_closed_under_ancestors_even_with_ties(seed, k, depth, budget, step):
    tokens, scores, parents, levels = random_pool(seed, k, depth, step)
    tree = cut_tree(torch.tensor(7), tokens, scores, parents, levels, budget)
    size = TreeShape(budget, depth, k).pool_size
    assert tokens.numel() == size
    assert tree.tokens.numel() == min(budget, size + 1)
    assert tree.tokens[0] == 7 and tree.parents[0] == 0 and tree.levels[0] == 0
    below = torch.arange(1, tree.tokens.numel())
    assert (tree.parents[below] < below).all()
    assert (tree.levels[below] == tree.levels[tree.parents[below]] + 1).all()
    # each node's parent is the pool's own parent
    pool = {int(token): index for index, token in enumerate(tokens)}
    for node in below.tolist():
        parent = int(parents[pool[int(tree.tokens[node])]])
        assert int(tree.tokens[tree.parents[node]]) == (7 if parent < 0 else int(tokens[parent]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 4), depth=st.integers(1, 5))
def test_larger_trees_contain_smaller_ones(seed, k, depth):
    pool = random_pool(seed, k, depth, 0.5)
    sizes = [set(cut_tree(torch.tensor(7), *pool, budget).tokens.tolist()) for budget in range(1, pool[0].numel() + 2)]
    assert all(small < large for small, large in pairwise(sizes))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 30))
def test_ancestor_mask_equals_walking_up(seed, budget):
    tree = cut_tree(torch.tensor(7), *random_pool(seed, 3, 4, 0.5), budget)
    mask = ancestor_mask(tree.parents, 4)
    for node in range(tree.tokens.numel()):
        walk, at = {node}, node
        while at:
            at = int(tree.parents[at])
            walk.add(at)
        assert set(mask[node].nonzero()[:, 0].tolist()) == walk


def test_accepted_path_follows_the_targets_choices():
    tree = Tree(
        torch.tensor([5, 8, 9, 8, 7, 3]),
        torch.tensor([0, 0, 0, 1, 2, 4]),
        torch.tensor([0, 1, 1, 2, 2, 3]),
    )
    mask = ancestor_mask(tree.parents, 3)
    assert accepted_path(tree, torch.tensor([9, 8, 7, 0, 3, 1]), mask).tolist() == [0, 2, 4, 5]
    assert accepted_path(tree, torch.tensor([9, 8, 6, 0, 3, 1]), mask).tolist() == [0, 2]
    assert accepted_path(tree, torch.tensor([1, 8, 7, 0, 3, 1]), mask).tolist() == [0]
    only = root_only(torch.tensor(4))
    assert accepted_path(only, torch.tensor([1]), ancestor_mask(only.parents, 0)).tolist() == [0]


def test_children_are_ordered_by_probability_then_id():
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    for count, wanted in (
        (2, [[1, 2], [0, 1]]),
        (4, [[1, 2, 3, 5], [0, 1, 2, 3]]),
        (9, [[1, 2, 3, 5, 0, 4], [0, 1, 2, 3, 4, 5]]),
    ):
        logp, ids = top_children(logits, count)
        assert ids.tolist() == wanted
        torch.testing.assert_close(logp, logits.log_softmax(-1).gather(-1, ids))


def test_a_sure_child_does_not_outrank_its_parent():
    logits = torch.zeros(1, 8)
    logits[0, 3] = 60.0
    logp, _ = top_children(logits, 2)
    assert logp.max() <= 0
