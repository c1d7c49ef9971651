"""The compiled kernels of trees and policies choose what those of torch choose."""

from __future__ import annotations

import pytest
import torch

from drafterforge.kernels.attention import additive
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.marginal import MarginalPolicy
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.observation import FLOOR, best_children, children_vector
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.tree.accept import accepted_path
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask, top_children
from drafterforge.tree.masks import level_mask, text_mask
from tests.kernels.test_native import compiled, without


def argmax(x):
    return kernels_of(x).argmax(x)


@compiled
@pytest.mark.parametrize("width", [1, 7, 16, 33, 8192])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_the_best_children_are_those_of_torch_also_under_ties(width, count, monkeypatch):
    logits = torch.randn(3, 2, width).mul(3).round(decimals=1)
    logits[0, 0] = 0.0
    logits[1, 1, : width // 2] = -torch.inf
    with torch.inference_mode():
        best, ids = top_children(logits, count)
        alone = [top_children(row[None], count) for row in logits.flatten(0, 1)]
        highest = best_children(logits.flatten(0, 1), count)
        without(monkeypatch)
        reference, places = top_children(logits, count)
    assert ids.equal(places) and best.shape == reference.shape and (best <= 0).all()
    torch.testing.assert_close(best, reference, rtol=1e-5, atol=2e-6)
    for row, (value, token) in enumerate(alone):
        assert value.equal(best.flatten(0, 1)[row : row + 1]) and token.equal(ids.flatten(0, 1)[row : row + 1])
    assert highest.equal(best.flatten(0, 1))


@compiled
@pytest.mark.parametrize("width", [1, 5, 16, 17, 49152])
def test_the_largest_logit_is_the_first_of_equal_ones(width):
    logits = torch.randn(2, 3, width).round(decimals=0)
    logits[0, 1] = -torch.inf
    ids = argmax(logits)
    first = (logits == logits.amax(dim=-1, keepdim=True)).int().argmax(dim=-1)
    assert ids.equal(first) and argmax(logits.transpose(0, 1)).equal(first.t())
    assert argmax(logits.double()).equal(first)


@compiled
@pytest.mark.parametrize("shape", [TreeShape(1, 0, 1), TreeShape(9, 3, 3), TreeShape(20, 5, 2)])
def test_confirmed_walks_are_those_of_torch(shape, monkeypatch):
    drawn = expand(
        torch.tensor([3, 5, 7]), torch.randn(3, 30), shape, lambda level, tokens, *_: torch.randn(*tokens.shape, 30)
    )
    counts = torch.tensor([1, shape.num_tokens, max(1, shape.num_tokens // 2)])
    padding = torch.arange(drawn.tokens.shape[1]) >= counts[:, None]
    positions = torch.arange(drawn.tokens.shape[1]).expand_as(padding)
    tree = Tree(
        drawn.tokens.masked_fill(padding, 0),
        torch.where(padding, positions, drawn.parents),
        drawn.levels.masked_fill(padding, 0),
    )
    mask, longest = ancestor_mask(tree.parents, shape.depth), 0
    for _ in range(30):
        next_tokens = torch.randint(0, 30, tree.tokens.shape)
        for node in range(1, tree.tokens.shape[1]):  # half of the time the parent's choice is this child
            right = torch.rand(3) < 0.5
            next_tokens[right] = next_tokens[right].scatter(
                1, tree.parents[right, node, None], tree.tokens[right, node, None]
            )
        path, counts = accepted_path(tree, next_tokens, mask, shape.depth)
        with monkeypatch.context() as patched:
            without(patched)
            reference, lengths = accepted_path(tree, next_tokens, mask, shape.depth)
        assert path.equal(reference) and counts.equal(lengths)
        longest = max(longest, int(counts.max()))
    assert longest > shape.depth / 2


@compiled
@pytest.mark.parametrize("hidden", [(), (5,), (128, 128)])
def test_a_policy_s_network_is_that_of_torch_once_it_is_frozen(hidden):
    net = ActorCritic(22, 19, hidden)
    net.normalise_by(torch.randn(50, 22) * 3 + 1)
    seen = torch.randn(4, 22) * 40

    reference = net.logits(seen)
    assert reference.requires_grad and net._packed is None
    logits = net.frozen().logits(seen)
    assert net._packed is not None and not logits.requires_grad
    torch.testing.assert_close(logits, reference, rtol=1e-5, atol=1e-5)
    many = torch.randn(50, 22)
    assert torch.cat([net.logits(row[None]) for row in many]).equal(net.logits(many))
    assert net.logits(seen, seen[:, :19] > 0).isinf().any()
    assert ActorCritic(3, 2, hidden).double().frozen().logits(torch.randn(1, 3).double()).dtype == torch.float64


@compiled
@pytest.mark.parametrize("count", [1, 4, 30, 116])
def test_what_a_marginal_policy_decides_is_what_torch_decides(count, monkeypatch):
    grid = ActionGrid("g", (2, 3, 5, 9, 40), (1, 2, 3), (4,))
    numbers = {"reach": 0.5, "rate": 2.0}
    spec = PolicySpec("marginal", "marginal", "", "a", "", "cpu", grid.as_dict(), top_k=4, numbers=numbers)
    policy = MarginalPolicy(spec, torch.tensor([0.0, 0.03, 0.06, 0.1, 0.6]))
    scores, depths = -torch.rand(500, count) * 6, torch.ones(500, dtype=torch.long)
    scores[:40, 1:] = -torch.inf
    arguments = (depths, scores, depths)
    going, nodes = policy.go_on(1, scores, depths), policy.nodes(*arguments)
    assert torch.cat([policy.nodes(depths[:1], row[None], depths[:1]) for row in scores]).equal(nodes)
    without(monkeypatch)
    assert policy.go_on(1, scores, depths).equal(going) and policy.nodes(*arguments).equal(nodes)
    assert len(set(nodes.tolist())) > (count > 1) and (count == 1 or 0 < going.sum() < 500)
    assert (nodes[:40] == 2).all()


@compiled
@pytest.mark.parametrize("count", [1, 10, 16, 37])
def test_what_a_scheduler_sees_of_children_is_what_traces_hold_of_them(count, monkeypatch):
    logp = -torch.exp(torch.randn(300, count) * 5).clamp(max=6e4)
    logp[0], logp[1, 0], logp[2, 0] = -torch.inf, 0.0, -torch.finfo(torch.float16).tiny / 3

    vector = children_vector(logp)
    assert vector[:, :count].equal(logp.half().float().clamp(min=FLOOR))
    assert vector.equal(children_vector(logp.half()))
    assert torch.cat([children_vector(row[None]) for row in logp]).equal(vector)
    without(monkeypatch)
    torch.testing.assert_close(vector, children_vector(logp), rtol=1e-5, atol=1e-5)


@compiled
@pytest.mark.parametrize("base", [0, 1, 37])
def test_masks_of_trees_are_those_of_torch(base, monkeypatch):
    parents = torch.tensor([[0, 0, 0, 1, 2, 4, 6], [0, 0, 1, 2, 4, 5, 6]])  # the second row is a chain, padded
    lengths = torch.tensor([base, base // 2])
    ours = ancestor_mask(parents, 4)
    masks = [level_mask(reads, lengths, base, torch.float32) for reads in (ours, ours[:, 2:, :5])]
    assert masks[0].shape == (2, 7, base + 7) and masks[1].shape == (2, 5, base + 5)
    without(monkeypatch)
    assert ancestor_mask(parents, 4).equal(ours)
    for reads, mask in zip((ours, ours[:, 2:, :5]), masks, strict=True):
        assert level_mask(reads, lengths, base, torch.float32).equal(mask)


@compiled
def test_a_mask_of_text_reads_the_first_slots_of_each_row(monkeypatch):
    lengths = torch.tensor([3, 5, 1])
    mask = text_mask(lengths, 5, torch.float32)
    assert mask.equal(additive(torch.arange(5) < lengths[:, None], torch.float32)[:, None])
    without(monkeypatch)
    assert text_mask(lengths, 5, torch.float32).equal(mask)
