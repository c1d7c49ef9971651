"""The compiled kernels equal their slow definitions, row by row the same bits whatever else is computed."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.errors import ConfigError
from drafterforge.kernels import native, native_trees
from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import KERNELS, NATIVE, TORCH, kernels_of
from drafterforge.kernels.linear import NATIVE_ROWS, AdaptedLinear, FrozenLinear
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.marginal import MarginalPolicy
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.observation import FLOOR, best_children, children_vector
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.targets import device as device_room
from drafterforge.targets.load import load_target, wrap_model
from drafterforge.tree.accept import accepted_path
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask, top_children
from drafterforge.tree.masks import level_mask
from tests.models import FAMILIES, tiny_model, tiny_target
from tests.tiny import build_tokenizer

compiled = pytest.mark.skipif(native.library() is None, reason=f"no compiled kernels: {native.why_not()}")


@pytest.fixture
def fresh():
    """What was found of a compiler is forgotten, before and after."""
    rooms = (native.library, native.why_not, native._load)
    for found in (*rooms, None):
        KERNELS.clear() if found is None else found.cache_clear()
    yield
    for found in (*rooms, None):
        KERNELS.clear() if found is None else found.cache_clear()


def without(monkeypatch) -> None:
    """Go on as on a machine without a compiler."""
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setitem(KERNELS, ("cpu", torch.float32), TORCH)


def rms_norm(x, *rest):
    """By the kernels that are chosen for x, as below."""
    return kernels_of(x).rms_norm(x, *rest)


def swiglu(x):
    return kernels_of(x).swiglu(x)


def grouped_attention(q, *rest):
    return kernels_of(q).grouped_attention(q, *rest)


def argmax(x):
    return kernels_of(x).argmax(x)


# Linear.


@compiled
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "depth"), [(64, 48), (70, 30), (1, 2), (33, 576), (96, 7)])
def test_a_linear_layer_equals_the_definition_in_any_number_of_rows(out, depth, bias, half):
    weight, offset, x = torch.randn(out, depth), torch.randn(out) if bias else None, torch.randn(31, depth)
    weight = weight.bfloat16().float() if half else weight
    layer, added = native.PackedLinear(weight, offset), torch.randn(31, out)
    assert layer.half is (half and depth % 2 == 0)
    wanted = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    whole = layer(x)
    torch.testing.assert_close(whole.double(), wanted, rtol=1e-5, atol=1e-4)
    for rows in (*range(1, 14), 24, 25):
        assert layer(x[:rows]).equal(whole[:rows])
    torch.testing.assert_close(layer(x, added), whole + added)


@compiled
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "depth", "rank"), [(64, 48, 16), (70, 30, 4), (33, 576, 32), (200, 200, 7), (1, 2, 1)])
def test_an_addition_equals_the_definition_in_any_number_of_rows(out, depth, rank, bias, half):
    parts = [torch.randn(out, depth), torch.randn(rank, depth), torch.randn(out, rank)]
    weight, down, up = [part.bfloat16().float() if half else part for part in parts]
    offset, x = torch.randn(out) if bias else None, torch.randn(31, depth)
    layer = native.PackedAddition(native.PackedLinear(weight, offset), down, up)
    wanted = F.linear(x.double(), weight.double() + up.double() @ down.double())
    wanted = wanted if offset is None else wanted + offset.double()
    whole = layer(x)
    torch.testing.assert_close(whole.double(), wanted, rtol=1e-5, atol=1e-3)
    for rows in (*range(1, 14), 24, 25):
        assert layer(x[:rows]).equal(whole[:rows])


@compiled
def test_a_projection_with_an_addition_is_left_to_torch_where_it_is_none_for_the_kernels(monkeypatch):
    base, low = FrozenLinear(torch.randn(40, 24)), LowRank(torch.randn(4, 24), torch.randn(4, 40).t())
    layer, asked = AdaptedLinear(base, low), []
    plain = native.PackedAddition.__call__
    monkeypatch.setattr(native.PackedAddition, "__call__", lambda *given: asked.append(0) or plain(*given))
    weight = base.weight + low.delta()
    several = torch.randn(2, 3, 24), torch.randn(6, 48)[:, ::2], torch.randn(NATIVE_ROWS + 1, 24), torch.randn(5, 24)
    for x in several:
        torch.testing.assert_close(layer(x), F.linear(x, weight), rtol=1e-4, atol=1e-4)
    assert len(asked) == 2
    without(monkeypatch)
    other = AdaptedLinear(FrozenLinear(base.weight), low)
    torch.testing.assert_close(other(several[-1]), F.linear(several[-1], weight), rtol=1e-4, atol=1e-4)
    assert other.native is None and len(asked) == 2


@compiled
def test_weights_that_are_bfloat16_numbers_take_half_the_bytes():
    weight = torch.randn(64, 48)
    exact, full = native.PackedLinear(weight.bfloat16().float(), None), native.PackedLinear(weight, None)
    assert 2 * exact.packed.nbytes == full.packed.nbytes == weight.nbytes


@compiled
def test_many_rows_are_left_to_blas_and_few_are_not(monkeypatch):
    layer, asked = FrozenLinear(torch.randn(40, 24)), []
    plain = native.PackedLinear.__call__
    monkeypatch.setattr(native.PackedLinear, "__call__", lambda *given: asked.append(0) or plain(*given))
    for rows in (1, NATIVE_ROWS, NATIVE_ROWS + 1):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight), rtol=1e-5, atol=1e-5)
    assert len(asked) == 2
    assert layer(x, True)[5:6].equal(layer(x[5:6], True))  # invariant: split rather than left to BLAS


@compiled
def test_what_asks_for_gradients_is_left_to_torch():
    x, gain = torch.randn(3, 24, requires_grad=True), torch.randn(24)
    q, (k, v) = torch.randn(1, 1, 4, 8, requires_grad=True), torch.randn(2, 1, 2, 5, 8)
    calls = {
        "rms_norm": (x, gain, 1e-5),
        "swiglu": (x,),
        "grouped_attention": (q, k, v, None),
        "top_children": (x, 3),
        "best_children": (x, 3),
        "children_state": (x, -20.0),
    }
    for name, given in calls.items():
        found, wanted = getattr(NATIVE, name)(*given), getattr(TORCH, name)(*given)
        found, wanted = (found[0], wanted[0]) if name == "top_children" else (found, wanted)
        assert found.requires_grad and found.equal(wanted), name
        with torch.no_grad():
            alone = getattr(NATIVE, name)(*given)
        torch.testing.assert_close(alone[0] if name == "top_children" else alone, wanted, rtol=1e-5, atol=1e-5)


# Small operations.


@compiled
@pytest.mark.parametrize("width", [3, 16, 70, 576])
def test_rms_norm_and_gate_equal_those_of_torch(width):
    x, gain = 3 * torch.randn(9, width), torch.randn(width)
    whole = native.rms_norm(x, gain, 1e-5)
    torch.testing.assert_close(whole, F.rms_norm(x, (width,), gain, 1e-5), rtol=2e-6, atol=1e-6)
    assert native.rms_norm(x[4:5], gain, 1e-5).equal(whole[4:5])
    wide = torch.randn(9, width + 5)[:, 2:-3]
    assert rms_norm(wide, gain, 1e-5).equal(rms_norm(wide.contiguous(), gain, 1e-5))
    both = 30 * torch.randn(9, 2 * width)
    both[0, :2] = torch.tensor([-200.0, 200.0])  # silu of -200 is -0 in float32
    whole, (gate, up) = native.swiglu(both), both.double().chunk(2, dim=-1)
    torch.testing.assert_close(whole.double(), F.silu(gate) * up, rtol=2e-6, atol=1e-6)
    assert native.swiglu(both[4:5]).equal(whole[4:5])


# Attention.


def cached(batch: int, key_heads: int, slots: int, width: int) -> KeyValueCache:
    """A one-layer cache full of noise, with room left over."""
    cache = KeyValueCache(1, batch, key_heads, width, torch.float32, "cpu")
    cache.set_slots(0, slots)
    cache.data.normal_()
    return cache


@compiled
@pytest.mark.parametrize("width", [8, 16, 20, 64, 80, 128])
@pytest.mark.parametrize(
    ("batch", "length", "heads", "key_heads"), [(1, 1, 9, 3), (1, 7, 9, 3), (3, 5, 4, 4), (2, 20, 8, 1)]
)
def test_attention_to_a_cache_equals_that_of_torch(batch, length, heads, key_heads, width, monkeypatch):
    cache, q = cached(batch, key_heads, 45, width), torch.randn(batch, length, heads, width)
    keys, values = cache.data[0, 0, :, :, :45], cache.data[0, 1, :, :, :45]
    reads = torch.rand(batch, length, 45) < 0.6
    reads[:, :, 0] = True
    mask = additive(reads, torch.float32)
    found = grouped_attention(q, keys, values, mask)
    assert native.attention(q, keys, values, mask, 45).equal(found)
    shared = grouped_attention(q, keys, values, mask[:1])
    without(monkeypatch)
    torch.testing.assert_close(found, grouped_attention(q, keys, values, mask), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shared, grouped_attention(q, keys, values, mask[:1]), rtol=1e-5, atol=1e-5)


@compiled
@pytest.mark.parametrize("width", [20, 64])
def test_a_query_gets_the_same_bits_alone_and_among_others(width):
    cache, q = cached(1, 3, 60, width), torch.randn(1, 13, 9, width)
    keys, values = cache.data[0, 0], cache.data[0, 1]
    reads = torch.rand(13, 60) < 0.6
    reads[:, 0] = True
    whole = native.attention(q, keys, values, additive(reads, torch.float32)[None], 60)
    for query, own in enumerate(reads):
        alone = keys[:, :, :60][:, :, own].contiguous(), values[:, :, :60][:, :, own].contiguous()
        assert native.attention(q[:, query : query + 1], *alone, None, int(own.sum())).equal(
            whole[:, query : query + 1]
        )


# Choosing: the best children, and a policy's network.


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
        wanted, places = top_children(logits, count)
    assert ids.equal(places) and best.shape == wanted.shape and (best <= 0).all()
    torch.testing.assert_close(best, wanted, rtol=1e-5, atol=2e-6)
    for row, (value, place) in enumerate(alone):
        assert value.equal(best.flatten(0, 1)[row : row + 1]) and place.equal(ids.flatten(0, 1)[row : row + 1])
    assert highest.equal(best.flatten(0, 1))


@compiled
@pytest.mark.parametrize("width", [1, 5, 16, 17, 49152])
def test_the_largest_logit_is_the_first_of_equal_ones(width):
    logits = torch.randn(2, 3, width).round(decimals=0)
    logits[0, 1] = -torch.inf
    found = argmax(logits)
    first = (logits == logits.amax(dim=-1, keepdim=True)).int().argmax(dim=-1)
    assert found.equal(first) and argmax(logits.transpose(0, 1)).equal(first.t())
    assert argmax(logits.double()).equal(first)


@compiled
@pytest.mark.parametrize("shape", [TreeShape(1, 0, 1), TreeShape(9, 3, 3), TreeShape(20, 5, 2)])
def test_confirmed_walks_are_those_of_torch(shape, monkeypatch):
    drawn = expand(
        torch.tensor([3, 5, 7]), torch.randn(3, 30), shape, lambda level, tokens, *_: torch.randn(*tokens.shape, 30)
    )
    counts = torch.tensor([1, shape.num_tokens, max(1, shape.num_tokens // 2)])
    padding = torch.arange(drawn.tokens.shape[1]) >= counts[:, None]
    own = torch.arange(drawn.tokens.shape[1]).expand_as(padding)
    tree = Tree(
        drawn.tokens.masked_fill(padding, 0),
        torch.where(padding, own, drawn.parents),
        drawn.levels.masked_fill(padding, 0),
    )
    mask, longest = ancestor_mask(tree.parents, shape.depth), 0
    for _ in range(30):
        chosen = torch.randint(0, 30, tree.tokens.shape)
        for node in range(1, tree.tokens.shape[1]):  # half of the time the parent's choice is this child
            right = torch.rand(3) < 0.5
            chosen[right] = chosen[right].scatter(1, tree.parents[right, node, None], tree.tokens[right, node, None])
        path, counts = accepted_path(tree, chosen, mask, shape.depth)
        with monkeypatch.context() as patched:
            without(patched)
            wanted, lengths = accepted_path(tree, chosen, mask, shape.depth)
        assert path.equal(wanted) and counts.equal(lengths)
        longest = max(longest, int(counts.max()))
    assert longest > shape.depth / 2


@compiled
@pytest.mark.parametrize("hidden", [(), (5,), (128, 128)])
def test_a_policy_s_network_is_that_of_torch_once_it_is_frozen(hidden):
    net = ActorCritic(22, 19, hidden)
    net.normalise_by(torch.randn(50, 22) * 3 + 1)
    seen = torch.randn(4, 22) * 40

    wanted = net.logits(seen)
    assert wanted.requires_grad and net._packed is None
    found = net.frozen().logits(seen)
    assert net._packed is not None and not found.requires_grad
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
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
    given = (depths, scores, depths)
    going, nodes = policy.go_on(1, scores, depths), policy.nodes(*given)
    assert torch.cat([policy.nodes(depths[:1], row[None], depths[:1]) for row in scores]).equal(nodes)
    without(monkeypatch)
    assert policy.go_on(1, scores, depths).equal(going) and policy.nodes(*given).equal(nodes)
    assert len(set(nodes.tolist())) > (count > 1) and (count == 1 or 0 < going.sum() < 500)
    assert (nodes[:40] == 2).all()


@compiled
@pytest.mark.parametrize("count", [1, 10, 16, 37])
def test_what_a_scheduler_sees_of_children_is_what_traces_hold_of_them(count, monkeypatch):
    logp = -torch.exp(torch.randn(300, count) * 5).clamp(max=6e4)
    logp[0], logp[1, 0], logp[2, 0] = -torch.inf, 0.0, -torch.finfo(torch.float16).tiny / 3

    found = children_vector(logp)
    assert found[:, :count].equal(logp.half().float().clamp(min=FLOOR))
    assert found.equal(children_vector(logp.half()))
    assert torch.cat([children_vector(row[None]) for row in logp]).equal(found)
    without(monkeypatch)
    torch.testing.assert_close(found, children_vector(logp), rtol=1e-5, atol=1e-5)


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


# What a kernel cannot see for itself.


@compiled
def test_what_would_be_read_past_or_misread_is_refused():
    layer, good = native.PackedLinear(torch.randn(8, 6), None), torch.randn(3, 6)
    for wrong in (torch.randn(3, 5), good.double(), good.bfloat16(), torch.randn(6, 3).t(), torch.randn(3, 12)[:, ::2]):
        with pytest.raises(ValueError, match=r"wanted torch.float32 \[3, 6\] on cpu, contiguous; got "):
            layer(wrong)
    with pytest.raises(ValueError, match=r"wanted torch.float32 \[3, 8\]"):
        layer(good, torch.randn(3, 7))
    with pytest.raises(ValueError, match=r"wanted torch.float32 \[3, 6\] on cpu"):
        native.PackedAddition(layer, torch.randn(2, 6), torch.randn(8, 2))(torch.randn(3, 5))
    for down, up in (((2, 5), (8, 2)), ((2, 6), (7, 2)), ((2, 6), (8, 3))):
        with pytest.raises(ValueError, match=r"cannot be added to \[8, 6\]"):
            native.PackedAddition(layer, torch.randn(down), torch.randn(up))
    cache, q = cached(1, 2, 10, 8), torch.randn(1, 3, 4, 8)
    keys, values = cache.data[0, 0], cache.data[0, 1]
    with pytest.raises(ValueError, match=r"wanted torch.float32 \[1, 3, 10\]"):
        native.attention(q, keys, values, torch.zeros(1, 3, 9), 10)
    with pytest.raises(
        ValueError, match=r"keys of 1 sequences, 1 to 256 slots; got torch\.float32, 1 sequences, 257 slots"
    ):
        native.attention(q, keys, values, None, 257)
    with pytest.raises(ValueError, match=r"wanted torch\.float32 keys of 2 sequences"):
        native.attention(torch.randn(2, 3, 4, 8), keys, values, None, 10)
    cos = torch.ones(4, 4)
    for rows, slots in ((4, None), (3, torch.zeros(2, dtype=torch.long))):  # of a cache of one sequence of 3 tokens
        with pytest.raises(ValueError, match=f"wanted 3 tokens for each of 1 sequences, got {rows}"):
            native.rotate_and_store(torch.randn(rows, 8, 8), cos, cos, 3, 4, cache.data[0], slots, 0)
    with pytest.raises(ValueError, match="wanted a gain of 6 numbers, got 5"):
        native.rms_norm(good, torch.ones(5), 1e-5)
    with pytest.raises(ValueError, match="wanted 1 to 6 of a row, got 7"):
        native.top(good, 7)
    nodes = torch.tensor([[4, 5, 6]])
    for parents, levels in (([[0, 2, 1]], 3), ([[0, 0, 1]], 2)):  # not yet known; deeper than was asked for
        with pytest.raises(ValueError, match="a node before its parent, or a walk of more than"):
            native_trees.walk(nodes, torch.tensor(parents), torch.tensor([[5, 6, 0]]), levels)
    with pytest.raises(ValueError, match=r"wanted torch.int64 \[1, 3\]"):
        native_trees.walk(nodes, nodes.int(), nodes, 2)
    with pytest.raises(ValueError, match="a node before its parent"):
        native_trees.ancestors(torch.tensor([[0, 2, 1]]))
    with pytest.raises(ValueError, match=r"wanted torch.int64 \[1\]"):
        native_trees.mask(torch.ones(1, 2, 2, dtype=torch.bool), torch.ones(2, dtype=torch.long), 4)
    net = native.PackedMLP(torch.zeros(6), torch.ones(6), 9.0, [(torch.randn(6, 2), torch.zeros(2))])
    with pytest.raises(ValueError, match=r"wanted torch.float32 \[3, 6\]"):
        net(good[:, :5])
    with pytest.raises(ValueError, match=r"wanted torch.float32 \[6, 2\]"):
        native.PackedMLP(torch.zeros(6), torch.ones(6), 9.0, [(torch.randn(5, 2), torch.zeros(2))])


@compiled
@pytest.mark.parametrize("slot", [-1, 256])
def test_a_slot_outside_the_cache_is_refused_before_anything_is_written(slot):
    cache, qkv = cached(1, 1, 10, 8), torch.randn(2, 4, 8)
    before, turned = cache.data.clone(), qkv.clone()
    with pytest.raises(IndexError, match="a slot lies outside the cache's 256"):
        cos = torch.ones(2, 4)
        native.rotate_and_store(turned, cos, cos, 2, 2, cache.data[0], torch.tensor([3, slot]), 0)
    assert cache.data.equal(before) and turned.equal(qkv)


# Whole targets.


@compiled
@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_gives_the_numbers_of_torch_and_single_tokens_the_bits_of_a_tree(family, monkeypatch):
    def run() -> tuple[torch.Tensor, torch.Tensor]:
        target = tiny_target(family, head_dim=16)
        text, positions = torch.arange(3, 33)[None], torch.arange(30)[None]
        cache = target.new_cache()
        cache.set_slots(0, 20)
        target.forward(text[:, :20], positions[:, :20], cache)
        single = []
        for at in range(20, 30):
            cache.set_slots(at, 1)
            states, _ = target.forward(text[:, at : at + 1], positions[:, at : at + 1], cache)
            single.append(target.logits(states))
        cache.set_slots(20, 10)
        past = torch.ones(10, 20, dtype=torch.bool)
        mask = additive(torch.cat((past, torch.ones(10, 10, dtype=torch.bool).tril()), dim=1), torch.float32)[None]
        states, _ = target.forward(text[:, 20:], positions[:, 20:], cache, mask)
        return torch.cat(single, dim=1), target.logits(states)

    with torch.inference_mode():
        single, tree = run()
        assert single.equal(tree)
        without(monkeypatch)
        torch.testing.assert_close(run()[1], tree, rtol=1e-4, atol=1e-4)


@compiled
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_weights_are_multiplied_in_float32_where_no_unit_multiplies_them(dtype, tmp_path, monkeypatch):
    tiny_model().save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    config = TargetConfig(source="hf", model=str(tmp_path), dtype=dtype)
    monkeypatch.setattr(device_room, "has_matrix_unit", lambda kind: False)
    target = load_target(config)
    half = getattr(torch, dtype)
    assert (target.dtype, target.compute_dtype) == (half, torch.float32)
    assert target.backbone.layers[0].down.native.half is (dtype == "bfloat16")
    rounded = tiny_model()
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(half).float()
    twin = wrap_model(rounded, None, name="twin", folder=tmp_path / "nowhere")
    text, positions = torch.arange(3, 33)[None], torch.arange(30)[None]
    with torch.inference_mode():
        assert target.forward(text, positions, None)[0].equal(twin.forward(text, positions, None)[0])
    monkeypatch.setattr(device_room, "has_matrix_unit", lambda kind: True)
    assert load_target(config).compute_dtype == half
    monkeypatch.setattr(device_room, "has_matrix_unit", lambda kind: False)
    without(monkeypatch)
    assert load_target(config).compute_dtype == half


# The compiler.


@compiled
@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
@pytest.mark.parametrize(
    ("flag", "panels"), [("-mno-avx512f", {8, 16}), ("-mno-avx512f -mno-fma", {8, 16}), ("-mno-avx", {8})]
)
def test_processors_with_narrower_vectors_compute_the_same(flag, panels, tmp_path):
    compiler = tmp_path / "cc"
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    compiler.write_text(f'#!/bin/sh\nexec {found} "$@" {flag}\n')
    compiler.chmod(0o755)
    environ = os.environ | {"CC": str(compiler), "XDG_CACHE_HOME": str(tmp_path)}
    chosen = "not narrower and not compile and not environment and not setting"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", chosen, __file__]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-3000:]
    assert "no compiled kernels" not in done.stdout
    (made,) = tmp_path.glob("drafterforge/native/*.so")
    assert ctypes.CDLL(str(made)).df_panel() in panels  # columns, of two vectors


@compiled
def test_kernels_are_compiled_once_and_kept(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library() is not None
    (made,) = (tmp_path / "drafterforge" / "native").iterdir()
    before = made.stat().st_mtime_ns
    native._load.cache_clear()
    native.library.cache_clear()
    assert native.library() is not None and made.stat().st_mtime_ns == before
    native._load.cache_clear()
    native.library.cache_clear()
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DOTHER"))
    assert native.library() is not None and len(list(made.parent.iterdir())) == 2


def test_the_environment_turns_them_off(fresh, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_NATIVE", "off")
    assert native.library() is None and native.why_not() == "DRAFTERFORGE_NATIVE=off"
    layer = FrozenLinear(torch.randn(40, 24))
    assert layer.native is None and layer(torch.randn(3, 24)).shape == (3, 40)
    both = torch.randn(3, 8)
    assert swiglu(both).shape == (3, 4)


def test_another_setting_is_refused(fresh, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_NATIVE", "maybe")
    with pytest.raises(ConfigError, match="DRAFTERFORGE_NATIVE='maybe' in the environment; wanted auto or off"):
        native.library()


def test_no_compiler_is_told(fresh, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert native.library() is None and native.why_not() == "no C compiler (cc, gcc or clang) on the PATH"


def test_a_compiler_that_fails_is_told_and_nothing_is_kept(fresh, tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'error: unrecognized option -fopenmp' >&2\nexit 1\n")
    os.chmod(broken, 0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native.library() is None and "unrecognized option -fopenmp" in native.why_not()
    assert not list((tmp_path / "cache" / "drafterforge" / "native").iterdir())
    broken.write_text("#!/bin/sh\necho >&2\nexit 1\n")
    for found in (native.library, native.why_not, native._load):
        found.cache_clear()
    assert native.library() is None and "did not compile native.c (exit status 1)" in native.why_not()
