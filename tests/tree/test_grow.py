"""The draft tree: closure under ancestors, order, masks and acceptance."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterforge.tree.accept import accepted_path, sampled_path
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask, cut_tree, root_only, top_children


def only_row(tree: Tree) -> Tree:
    """The only row of a batch."""
    return Tree(tree.tokens[0], tree.parents[0], tree.levels[0])


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
    tree = only_row(cut_tree(torch.tensor([7]), tokens[None], scores[None], parents[None], levels, budget))
    size = TreeShape(budget, depth, k).pool_size
    assert tokens.numel() == size
    assert tree.tokens.numel() == min(budget, size + 1)
    assert tree.tokens[0] == 7 and tree.parents[0] == 0 and tree.levels[0] == 0
    below = torch.arange(1, tree.tokens.numel())
    assert (tree.parents[below] < below).all()
    assert (tree.levels[below] == tree.levels[tree.parents[below]] + 1).all()
    # each node keeps its parent of the pool
    pool = {int(token): index for index, token in enumerate(tokens)}
    for node in below.tolist():
        parent = int(parents[pool[int(tree.tokens[node])]])
        assert int(tree.tokens[tree.parents[node]]) == (7 if parent < 0 else int(tokens[parent]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 4), depth=st.integers(1, 5))
def test_larger_trees_contain_smaller_ones(seed, k, depth):
    pool = random_pool(seed, k, depth, 0.5)
    rows = [part[None] for part in pool]
    sizes = [set(cut_tree(torch.tensor([7]), *rows, n).tokens[0].tolist()) for n in range(1, pool[0].numel() + 2)]
    assert all(small < large for small, large in pairwise(sizes))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 30))
def test_ancestor_mask_equals_walking_up(seed, budget):
    trees = cut_tree(torch.tensor([7]), *(part[None] for part in random_pool(seed, 3, 4, 0.5)), budget)
    mask, tree = ancestor_mask(trees.parents, 4)[0], only_row(trees)
    for node in range(tree.tokens.numel()):
        walk, at = {node}, node
        while at:
            at = int(tree.parents[at])
            walk.add(at)
        assert set(mask[node].nonzero()[:, 0].tolist()) == walk


# Node 5 hangs below 4, 4 below 2, 3 below 1; the second row is a chain of three with padding behind it.
TREES = Tree(
    torch.tensor([[5, 8, 9, 8, 7, 3], [6, 1, 2, 0, 0, 0]]),
    torch.tensor([[0, 0, 0, 1, 2, 4], [0, 0, 1, 3, 4, 5]]),
    torch.tensor([[0, 1, 1, 2, 2, 3], [0, 1, 2, 0, 0, 0]]),
)
WALKS = {  # the target's token after each node, and the walks it confirms
    (9, 8, 7, 0, 3, 1): [0, 2, 4, 5],
    (9, 8, 6, 0, 3, 1): [0, 2],
    (1, 8, 7, 0, 3, 1): [0],
}
CHAIN = {(1, 2, 9, 0, 0, 0): [0, 1, 2], (1, 9, 9, 0, 0, 0): [0, 1], (0, 0, 0, 0, 0, 0): [0]}


@pytest.mark.parametrize("first", WALKS)
@pytest.mark.parametrize("second", CHAIN)
def test_accepted_paths_follow_the_targets_tokens(first, second):
    target_tokens = torch.tensor([first, second])
    path, counts = accepted_path(TREES, target_tokens, ancestor_mask(TREES.parents, 3), 3)
    assert path[0, : counts[0]].tolist() == WALKS[first]
    assert path[1, : counts[1]].tolist() == CHAIN[second]


@pytest.mark.parametrize("first", WALKS)
@pytest.mark.parametrize("second", CHAIN)
def test_token_by_token_acceptance_walks_the_same_paths_and_reads_no_other_node(first, second):
    target_tokens, nodes = torch.tensor([first, second]), [[], []]
    logits = torch.nn.functional.one_hot(target_tokens, 10).float()
    logits = torch.cat(
        (logits, torch.arange(6.0).expand(2, -1)[:, :, None]), dim=2
    )  # the last logit is the node's index

    def pick(level, rows, walking):
        for row in walking.nonzero()[:, 0].tolist():
            nodes[row].append(int(rows[row, -1]))
        return rows[:, :-1].argmax(dim=-1)

    path, counts, tokens = sampled_path(TREES, logits, 3, pick)
    for row, walk in enumerate((WALKS[first], CHAIN[second])):
        assert path[row, : counts[row]].tolist() == nodes[row] == walk
        assert tokens[row, : counts[row]].tolist() == target_tokens[row, walk].tolist()


def test_a_tree_without_drafted_nodes_accepts_only_its_root():
    only = root_only(torch.tensor([4, 5]))
    path, counts = accepted_path(only, torch.tensor([[4], [1]]), ancestor_mask(only.parents, 0), 0)
    assert path.tolist() == [[0], [0]] and counts.tolist() == [1, 1]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), shape=st.tuples(st.integers(1, 30), st.integers(0, 4), st.integers(1, 4)))
def test_trees_drafted_together_equal_trees_drafted_alone(seed, shape):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 4, (12, 12), generator=generator).float()  # few values: ties abound
    first = table[torch.randint(0, 12, (3,), generator=generator)]

    def step(level, tokens, origin, reads):
        assert reads[..., -tokens.shape[1] :].equal(
            torch.eye(tokens.shape[1], dtype=torch.bool).expand_as(reads[..., -tokens.shape[1] :])
        )
        return table[tokens]

    roots = torch.tensor([7, 8, 9])
    together = expand(roots, first, TreeShape(*shape), step)
    for row in range(3):
        alone = expand(roots[row : row + 1], first[row : row + 1], TreeShape(*shape), step)
        for name in ("tokens", "parents", "levels"):
            assert getattr(together, name)[row].equal(getattr(alone, name)[0])


def test_children_are_ordered_by_probability_then_id():
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    for count, expected in (
        (2, [[1, 2], [0, 1]]),
        (4, [[1, 2, 3, 5], [0, 1, 2, 3]]),
        (9, [[1, 2, 3, 5, 0, 4], [0, 1, 2, 3, 4, 5]]),
    ):
        logp, ids = top_children(logits, count)
        assert ids.tolist() == expected
        torch.testing.assert_close(logp, logits.log_softmax(-1).gather(-1, ids))


def test_a_child_of_probability_1_does_not_outrank_its_parent():
    logits = torch.zeros(1, 8)
    logits[0, 3] = 60.0
    logp, _ = top_children(logits, 2)
    assert logp.max() <= 0
