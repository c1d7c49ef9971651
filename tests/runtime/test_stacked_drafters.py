"""One pass over stacked drafters equals a loop over them, with adapters and norms of every kind."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.lora import merge
from drafterforge.drafters.eagle3.propose import new_draft_cache
from drafterforge.drafters.eagle3.spec import FLAGS
from drafterforge.drafters.eagle3.stack import Eagle3Proposer, StackedGroup, read_slots
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.drafters.judging import Truth
from drafterforge.errors import DrafterforgeError
from drafterforge.kernels import native
from tests.models import NORMS, tiny_drafter, uneven
from tests.runtime.drafters import SHAPE, full_drafters, lora_drafters, mixed_drafters, random_adapter

compiled = pytest.mark.skipif(native.library() is None, reason=f"no compiled kernels: {native.why_not()}")
KINDS = {
    "lora": lora_drafters,
    "full": full_drafters,
    "mixed": mixed_drafters,
    "norm before residual": partial(full_drafters, norm_before_residual=True),
    **{
        f"{kind}, {name}": partial(build, **norms)
        for kind, build in (("lora", lora_drafters), ("full", full_drafters), ("mixed", mixed_drafters))
        for name, norms in NORMS.items()
        if norms
    },
}


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *((kind, 3) for kind in KINDS if "norm_output" in kind or "fc_norm" in kind or "3.1" in kind),
        *((kind, count) for kind in ("lora", "full") for count in (1, 2, 7, 16)),
        ("mixed", 3),
        ("norm before residual", 2),
    ],
)
def test_one_pass_equals_the_loop_over_drafters(target, kind, count):
    members = KINDS[kind](target, count)
    pool, loop = StackedGroup(StackedDrafters(members)), [Eagle3Proposer(member) for member in members]
    width = target.config.hidden_size
    for length in (5, 1, 9):
        text, features = torch.randint(0, 61, (length + 1,)), torch.randn(length, 3 * width)
        pool.admit(text, features)
        for proposer in loop:
            proposer.admit(text, features)
    for counts in ([1, 3, 2], [4, 1, 1]):
        tokens, features = torch.randint(0, 61, (3, max(counts))), torch.randn(3, max(counts), 3 * width)
        pool.commit(tokens, features, counts)
        pool.read(Truth(tokens, None), top_k=[3] * len(members))
        for proposer in loop:
            proposer.read(tokens, features, counts)
    torch.testing.assert_close(pool.last, torch.stack([proposer.last for proposer in loop]), rtol=1e-5, atol=1e-5)
    root = tokens[torch.arange(3), torch.tensor(counts) - 1]
    for member, proposer in enumerate(loop):
        expected, tree = proposer.draft_trees(root, SHAPE), pool.draft(member, [0, 1, 2], root, SHAPE)
        assert torch.equal(expected.tokens, tree.tokens) and torch.equal(expected.parents, tree.parents)
        some = pool.draft(member, [2, 0], root[[2, 0]], SHAPE)
        assert torch.equal(some.tokens, expected.tokens[[2, 0]])


@compiled
@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_experts_of_one_generalist_read_in_one_call_as_kernel_by_kernel(target, norms, batch, newest, monkeypatch):
    members = lora_drafters(target, 4, **norms)  # the first adds nothing
    stacked, width, results, calls = StackedDrafters(members), target.config.hidden_size, [], []
    tokens, features = torch.randint(0, 61, (batch, 4)), torch.randn(batch, 4, 3 * width)
    slots = torch.tensor([3, 0, 5])[:batch, None] + torch.arange(4)
    rows = torch.arange(batch) * 4 + torch.tensor([3, 1, 2])[-batch:] if newest else None
    assert stacked.packed is not None
    call = type(stacked.packed).__call__
    monkeypatch.setattr(type(stacked.packed), "__call__", lambda *parts: calls.append(0) or call(*parts))
    for packed in (stacked.packed, None):
        stacked.packed = packed
        cache = new_draft_cache(members[0], len(members) * batch)
        cache.reserve(16)
        cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(0)))
        cache.set_ragged_slots(slots.repeat(len(members), 1), 9)
        results.append((*read_slots(stacked, cache, tokens, features, slots, 9, rows), cache.data))
    assert len(calls) == 1
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_alone_equal_those_that_the_layer_attends_to(target, kind):
    members = KINDS[kind](target, 3)
    stacked, attended = StackedDrafters(members), []

    def attend(q, k, v):
        attended.append((k, v))
        return torch.zeros_like(q)

    tokens, positions = torch.randint(0, 61, (5,)), torch.arange(7, 12)
    hidden = stacked.fuse(torch.randn(5, 3 * target.config.hidden_size)).expand(len(members), -1, -1)
    stacked.layer(stacked.embed(tokens), hidden, positions, attend)
    torch.testing.assert_close(stacked.keys(stacked.embed(tokens), hidden, positions), attended[0])


@pytest.mark.parametrize("flag", FLAGS)
def test_drafters_whose_norms_differ_do_not_stack(target, flag):
    members = [*full_drafters(target, 1), *full_drafters(target, 1, **{flag: True})]
    with pytest.raises(DrafterforgeError, match="do not stack"):
        StackedDrafters(members)


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_an_expert_drafts_as_with_its_adapter_merged_into_its_weights(target, norms):
    drafter = uneven(tiny_drafter(target, **norms))
    adapter = random_adapter(drafter, 3, ("fc", "q_proj", "k_proj", "gate_proj", "down_proj", "o_proj", "lm_head"))
    before = copy.deepcopy(drafter.state_dict())
    expert = FusedDrafter(drafter, target.backbone.embedding).with_adapter(adapter)
    dense_expert = FusedDrafter(merge(drafter, adapter), target.backbone.embedding)
    ours, theirs = Eagle3Proposer(expert), Eagle3Proposer(dense_expert)
    text, features = torch.randint(0, 61, (8,)), torch.randn(7, 3 * target.config.hidden_size)
    for proposer in (ours, theirs):
        proposer.admit(text, features)
    torch.testing.assert_close(ours.last, theirs.last, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(expert.logits(ours.last), dense_expert.logits(theirs.last), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(drafter.state_dict()[name], tensor) for name, tensor in before.items())
