"""The compiled kernels equal their slow definitions, row by row the same bits whatever else is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.kernels import native, native_linear, native_trees
from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import KERNELS, NATIVE, TORCH, kernels_of
from drafterforge.kernels.linear import AdaptedLinear, FrozenLinear
from drafterforge.kernels.native_linear import NATIVE_ROWS
from drafterforge.targets.load import Target, load_target, wrap_model
from tests.models import FAMILIES, tiny_model, tiny_target
from tests.tiny import build_tokenizer

compiled = pytest.mark.skipif(native.library() is None, reason=f"no compiled kernels: {native.why_not()}")
eight_bit = pytest.mark.usefixtures("multiplies_bytes")
rounding = pytest.mark.skipif(not native.multiplies_bfloat16(), reason="no AVX512-BF16")


@pytest.fixture
def multiplies_bytes() -> None:
    """Asked in each test: test_native_compiler.py runs them with several libraries."""
    if not native.multiplies_bytes():
        pytest.skip("no AVX512-VNNI")


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


# Linear.


@compiled
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "depth"), [(64, 48), (70, 30), (1, 2), (33, 576), (96, 7)])
def test_a_linear_layer_equals_the_definition_in_any_number_of_rows(out, depth, bias, half):
    weight, offset, x = torch.randn(out, depth), torch.randn(out) if bias else None, torch.randn(31, depth)
    weight = weight.bfloat16().float() if half else weight
    layer, added = native_linear.PackedLinear(weight, offset), torch.randn(31, out)
    assert layer.size == (2 if half and depth % 2 == 0 else 4)
    reference = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    product = layer(x)
    torch.testing.assert_close(product.double(), reference, rtol=1e-5, atol=1e-4)
    for rows in (*range(1, 14), 24, 25):
        assert layer(x[:rows]).equal(product[:rows])
    torch.testing.assert_close(layer(x, added), product + added)


@compiled
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "depth", "rank"), [(64, 48, 16), (70, 30, 4), (33, 576, 32), (200, 200, 7), (1, 2, 1)])
def test_an_addition_equals_the_definition_in_any_number_of_rows(out, depth, rank, bias, half):
    parts = [torch.randn(out, depth), torch.randn(rank, depth), torch.randn(out, rank)]
    weight, down, up = [part.bfloat16().float() if half else part for part in parts]
    offset, x = torch.randn(out) if bias else None, torch.randn(31, depth)
    layer = native_linear.PackedAddition(native_linear.PackedLinear(weight, offset), down, up)
    reference = F.linear(x.double(), weight.double() + up.double() @ down.double())
    reference = reference if offset is None else reference + offset.double()
    product = layer(x)
    torch.testing.assert_close(product.double(), reference, rtol=1e-5, atol=1e-3)
    for rows in (*range(1, 14), 24, 25):
        assert layer(x[:rows]).equal(product[:rows])


@compiled
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize(("out", "depth", "rank"), [(64, 48, 16), (70, 30, 4), (33, 576, 40), (1, 2, 1)])
@pytest.mark.parametrize("experts", [1, 2, 7])
def test_each_of_several_experts_adds_to_rows_of_its_own(experts, out, depth, rank, half):
    parts = [torch.randn(out, depth), torch.randn(experts, rank, depth), torch.randn(experts, out, rank)]
    weight, down, up = [part.bfloat16().float() if half else part for part in parts]
    down[0], base = 0.0, native_linear.PackedLinear(weight, None)
    layer, singles = native_linear.PackedAddition(base, down, up), []
    for number in range(experts):
        singles.append(native_linear.PackedAddition(base, down[number], up[number]))
    for rows in (1, 3, 13):
        x = torch.randn(experts, rows, depth)
        product = layer(x.flatten(0, 1)).view(experts, rows, out)
        for number, single in enumerate(singles):
            torch.testing.assert_close(product[number], single(x[number]))
    if experts > 1:
        with pytest.raises(ValueError, match=f"{experts + 1} rows cannot be divided among {experts} experts"):
            layer(torch.randn(experts + 1, depth))


@rounding
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "depth"), [(64, 48), (70, 30), (1, 2), (33, 576), (200, 1538)])
def test_rounded_inputs_are_multiplied_by_bfloat16_weights_in_any_number_of_rows(out, depth, bias):
    weight, offset = torch.randn(out, depth).bfloat16().float(), torch.randn(out) if bias else None
    layer, x, added = (
        native_linear.PackedLinear(weight, offset, rounds=True),
        torch.randn(31, depth),
        torch.randn(31, out),
    )
    assert layer.size == 2 and layer.rounds
    reference = F.linear(x.bfloat16().double(), weight.double(), None if offset is None else offset.double())
    product = layer(x)
    torch.testing.assert_close(product.double(), reference, rtol=1e-5, atol=2e-4)
    for rows in (*range(1, 14), 24, 25):
        assert layer(x[:rows]).equal(product[:rows])
    torch.testing.assert_close(layer(x, added), product + added)
    many = FrozenLinear(weight, offset, rounds=True)(x.repeat(10, 1))  # more than NATIVE_ROWS
    assert many.equal(product.repeat(10, 1))


@compiled
def test_inputs_are_not_rounded_where_weights_are_no_bfloat16_numbers_or_the_processor_cannot(monkeypatch):
    weight, x = torch.randn(40, 24), torch.randn(5, 24)
    assert native_linear.PackedLinear(weight, None, rounds=True)(x).equal(native_linear.PackedLinear(weight, None)(x))
    monkeypatch.setattr(native, "multiplies_bfloat16", lambda: False)
    weight = weight.bfloat16().float()
    assert native_linear.PackedLinear(weight, None, rounds=True)(x).equal(native_linear.PackedLinear(weight, None)(x))


@eight_bit
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "depth"), [(64, 48), (70, 28), (1, 4), (33, 576), (96, 1152)])
def test_bytes_are_multiplied_exactly_in_any_number_of_rows(out, depth, bias):
    weight, offset, x = (
        torch.randn(out, depth).bfloat16().float(),
        torch.randn(out) if bias else None,
        torch.randn(31, depth),
    )
    weight[0], x[3] = 0.0, 0.0  # no step
    layer, added = native_linear.PackedLinear(weight, offset, int8=True), torch.randn(31, out)
    assert layer.size == 1 and layer.any_rows
    product = layer(x)
    counts = layer.packed.transpose(1, 2).reshape(-1, depth)[:out].double()  # of steps, of each weight
    step = weight.double().abs().amax(dim=1, keepdim=True) / 127
    assert ((counts * step - weight).abs() <= 0.501 * step).all()
    row_step = x.double().abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
    expected = ((x / row_step).round() @ counts.T) * row_step * step.T + (0.0 if offset is None else offset)
    torch.testing.assert_close(product.double(), expected, rtol=1e-4, atol=1e-4)
    unrounded = F.linear(x, weight, offset)
    assert (product - unrounded).norm() <= 0.03 * unrounded.norm()
    for rows in (*range(1, 14), 24, 25):
        assert layer(x[:rows]).equal(product[:rows])
    torch.testing.assert_close(layer(x, added), product + added)
    beyond = layer.packed.transpose(1, 2).reshape(-1, depth)[out:]
    assert not beyond.any() and not layer.offsets[out:].any() and not layer.offsets[0]
    many = FrozenLinear(weight, offset, int8=True)(x.repeat(10, 1))  # more than NATIVE_ROWS
    assert many.equal(product.repeat(10, 1))


@eight_bit
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so_and_tiny_numbers_count_as_none(odd):
    layer, x = native_linear.PackedLinear(torch.randn(40, 36).bfloat16().float(), None, int8=True), torch.randn(3, 36)
    expected = layer(x)
    x[1, 17] = odd
    x = torch.cat((x, torch.full((1, 36), 1e-38)))
    product = layer(x)
    assert product[1].isnan().all() and not product[3].any()
    assert product[0].equal(expected[0]) and product[2].equal(expected[2])


@eight_bit
def test_an_addition_to_bytes_is_not_rounded():
    weight, down, up = torch.randn(70, 48).bfloat16().float(), torch.randn(4, 48), torch.randn(70, 4)
    base, x = native_linear.PackedLinear(weight, None, int8=True), torch.randn(5, 48)
    torch.testing.assert_close(native_linear.PackedAddition(base, down, up)(x), base(x) + x @ down.T @ up.T)


@compiled
def test_weights_are_kept_where_they_are_no_bfloat16_numbers_or_the_processor_multiplies_no_bytes(monkeypatch):
    weight = torch.randn(8, 16)
    assert native_linear.PackedLinear(weight, None, int8=True).size == 4
    assert native_linear.PackedLinear(weight.bfloat16().float()[:, :14], None, int8=True).size == 2
    monkeypatch.setattr(native, "multiplies_bytes", lambda: False)
    assert native_linear.PackedLinear(weight.bfloat16().float(), None, int8=True).size == 2


@compiled
def test_a_projection_with_an_addition_is_left_to_torch_where_it_is_none_for_the_kernels(monkeypatch):
    base, low = FrozenLinear(torch.randn(40, 24)), LowRank(torch.randn(4, 24), torch.randn(4, 40).t())
    layer, native_calls = AdaptedLinear(base, low), []
    plain = native_linear.PackedAddition.__call__
    monkeypatch.setattr(
        native_linear.PackedAddition, "__call__", lambda *arguments: native_calls.append(0) or plain(*arguments)
    )
    weight = base.weight + low.delta()
    several = torch.randn(2, 3, 24), torch.randn(6, 48)[:, ::2], torch.randn(NATIVE_ROWS + 1, 24), torch.randn(5, 24)
    for x in several:
        torch.testing.assert_close(layer(x), F.linear(x, weight), rtol=1e-4, atol=1e-4)
    assert len(native_calls) == 2
    without(monkeypatch)
    torch_layer = AdaptedLinear(FrozenLinear(base.weight), low)
    torch.testing.assert_close(torch_layer(several[-1]), F.linear(several[-1], weight), rtol=1e-4, atol=1e-4)
    assert torch_layer.native is None and len(native_calls) == 2


@compiled
def test_weights_that_are_bfloat16_numbers_take_half_the_bytes():
    weight = torch.randn(64, 48)
    exact, full = native_linear.PackedLinear(weight.bfloat16().float(), None), native_linear.PackedLinear(weight, None)
    assert 2 * exact.packed.nbytes == full.packed.nbytes == weight.nbytes


@compiled
def test_many_rows_are_left_to_blas_and_few_are_not(monkeypatch):
    layer, native_calls = FrozenLinear(torch.randn(40, 24)), []
    plain = native_linear.PackedLinear.__call__
    monkeypatch.setattr(
        native_linear.PackedLinear, "__call__", lambda *arguments: native_calls.append(0) or plain(*arguments)
    )
    for rows in (1, NATIVE_ROWS, NATIVE_ROWS + 1):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight), rtol=1e-5, atol=1e-5)
    assert len(native_calls) == 2
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
    for name, arguments in calls.items():
        out, reference = getattr(NATIVE, name)(*arguments), getattr(TORCH, name)(*arguments)
        out, reference = (out[0], reference[0]) if name == "top_children" else (out, reference)
        assert out.requires_grad and out.equal(reference), name
        with torch.no_grad():
            alone = getattr(NATIVE, name)(*arguments)
        torch.testing.assert_close(alone[0] if name == "top_children" else alone, reference, rtol=1e-5, atol=1e-5)


# Small operations.


@compiled
@pytest.mark.parametrize("width", [3, 16, 70, 576])
def test_rms_norm_and_gate_equal_those_of_torch(width):
    x, gain = 3 * torch.randn(9, width), torch.randn(width)
    out = native.rms_norm(x, gain, 1e-5)
    torch.testing.assert_close(out, F.rms_norm(x, (width,), gain, 1e-5), rtol=2e-6, atol=1e-6)
    assert native.rms_norm(x[4:5], gain, 1e-5).equal(out[4:5])
    wide = torch.randn(9, width + 5)[:, 2:-3]
    assert rms_norm(wide, gain, 1e-5).equal(rms_norm(wide.contiguous(), gain, 1e-5))
    gate_and_up = 30 * torch.randn(9, 2 * width)
    gate_and_up[0, :2] = torch.tensor([-200.0, 200.0])  # silu of -200 is -0 in float32
    out, (gate, up) = native.swiglu(gate_and_up), gate_and_up.double().chunk(2, dim=-1)
    torch.testing.assert_close(out.double(), F.silu(gate) * up, rtol=2e-6, atol=1e-6)
    assert native.swiglu(gate_and_up[4:5]).equal(out[4:5])


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
    out = grouped_attention(q, keys, values, mask)
    assert native.attention(q, keys, values, mask, 45).equal(out)
    shared = grouped_attention(q, keys, values, mask[:1])
    without(monkeypatch)
    torch.testing.assert_close(out, grouped_attention(q, keys, values, mask), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shared, grouped_attention(q, keys, values, mask[:1]), rtol=1e-5, atol=1e-5)


@compiled
def test_slots_that_only_longer_sequences_read_are_not_loaded():
    lengths = [1, 7, 45]
    cache, q = cached(3, 3, 45, 64), torch.randn(3, 1, 9, 64)
    keys, values = cache.data[0, 0], cache.data[0, 1]
    mask = additive(torch.arange(45) < torch.tensor(lengths)[:, None, None], torch.float32)
    for row, length in enumerate(lengths):
        keys[row, :, length:] = values[row, :, length:] = float("nan")
    out = native.attention(q, keys, values, mask, 45)
    for row, length in enumerate(lengths):
        alone = (x[row : row + 1, :, :length].contiguous() for x in (keys, values))
        assert native.attention(q[row : row + 1], *alone, None, length).equal(out[row : row + 1])


@compiled
@pytest.mark.parametrize(("width", "count"), [(20, 13), (64, 13), (64, 150), (20, 300)])
def test_a_query_gets_the_same_bits_alone_and_among_others(width, count):
    cache, q = cached(1, 3, 60, width), torch.randn(1, count, 9, width)
    keys, values = cache.data[0, 0], cache.data[0, 1]
    reads = torch.rand(count, 60) < 0.6
    reads[:, 0] = True
    out = grouped_attention(q, keys[:, :, :60], values[:, :, :60], additive(reads, torch.float32)[None])
    for query, mask in enumerate(reads):
        alone = keys[:, :, :60][:, :, mask].contiguous(), values[:, :, :60][:, :, mask].contiguous()
        assert native.attention(q[:, query : query + 1], *alone, None, int(mask.sum())).equal(out[:, query : query + 1])


# Choosing: the best children, and a policy's network.


# What a kernel cannot see for itself.


@compiled
def test_packed_walks_equal_those_of_torch():
    parents = torch.tensor([[0, 0, 1, 3], [0, 0, 0, 2]])  # the first tree has a node of padding
    path, tokens, lengths = torch.tensor([[0, 1, 2], [0, 2, 0]]), torch.randint(0, 99, (2, 3)), torch.tensor([3, 2])
    packed = NATIVE.pack_walks(parents, path, lengths, tokens)
    assert packed.equal(TORCH.pack_walks(parents, path, lengths, tokens)) and packed[:, 0].tolist() == [3, 4]
    shared = torch.zeros(1, 3, dtype=torch.long).expand(2, -1)
    assert NATIVE.pack_walks(parents, shared, lengths, tokens).equal(TORCH.pack_walks(parents, shared, lengths, tokens))


@compiled
def test_what_would_be_read_past_or_misread_is_refused():
    layer, good = native_linear.PackedLinear(torch.randn(8, 6), None), torch.randn(3, 6)
    for wrong in (torch.randn(3, 5), good.double(), good.bfloat16(), torch.randn(6, 3).t(), torch.randn(3, 12)[:, ::2]):
        with pytest.raises(ValueError, match=r"wanted torch.float32 \[3, 6\] on cpu, contiguous; got "):
            layer(wrong)
    with pytest.raises(ValueError, match=r"wanted torch.float32 \[3, 8\]"):
        layer(good, torch.randn(3, 7))
    with pytest.raises(ValueError, match=r"wanted torch.float32 \[3, 6\] on cpu"):
        native_linear.PackedAddition(layer, torch.randn(2, 6), torch.randn(8, 2))(torch.randn(3, 5))
    for down, up in (((2, 5), (8, 2)), ((2, 6), (7, 2)), ((2, 6), (8, 3)), ((2, 2, 6), (3, 8, 2)), ((2, 6), (1, 8, 2))):
        with pytest.raises(ValueError, match=r"cannot be added to \[8, 6\]"):
            native_linear.PackedAddition(layer, torch.randn(down), torch.randn(up))
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
    with pytest.raises(ValueError, match=r"wanted torch.int64 \[1, 3\]"):
        native_trees.pack_walks(nodes, nodes, torch.tensor([1]), nodes[:, :2].contiguous())
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


def alone_and_in_a_tree(target: Target) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of ten tokens after twenty: each in a pass of its own, and all in one."""
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


@rounding
@torch.inference_mode()
def test_a_target_of_bfloat16_rounds_inputs_and_single_tokens_have_the_bits_of_a_tree():
    model, logits = tiny_model("llama", head_dim=16).bfloat16().float(), {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        target = wrap_model(model, None, name="tiny", folder=Path("nowhere"), dtype=dtype)
        single, logits[dtype] = alone_and_in_a_tree(target)
        assert single.equal(logits[dtype])
    assert logits[torch.float16].equal(logits[torch.float32])
    difference = (logits[torch.bfloat16] - logits[torch.float32]).abs().mean()
    assert 0 < difference < 0.02 * logits[torch.float32].std()


@compiled
@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_gives_the_numbers_of_torch_and_single_tokens_the_bits_of_a_tree(family, monkeypatch):
    def run() -> tuple[torch.Tensor, torch.Tensor]:
        return alone_and_in_a_tree(tiny_target(family, head_dim=16))

    with torch.inference_mode():
        single, tree = run()
        assert single.equal(tree)
        without(monkeypatch)
        torch.testing.assert_close(run()[1], tree, rtol=1e-4, atol=1e-4)


@compiled
@pytest.mark.parametrize("length", [2, 64, 65, 120])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_text_has_the_bits_of_single_tokens_with_a_cache_and_without(length, dtype):
    model = tiny_model("llama", head_dim=16).bfloat16().float()
    target = wrap_model(model, None, name="tiny", folder=Path("nowhere"), dtype=dtype)
    text, positions = torch.arange(2 * length).view(2, length) % 61, torch.arange(length)[None].expand(2, -1)
    single, cache = [], target.new_cache(2)
    for at in range(length):
        cache.set_slots(at, 1)
        single.append(target.forward(text[:, at : at + 1], positions[:, at : at + 1], cache)[0])
    cache.set_slots(0, length)
    for of in (cache, None):
        assert target.forward(text, positions, of)[0].equal(torch.cat(single, dim=1))


@compiled
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_weights_have_float32_activations_with_compiled_kernels(dtype, tmp_path, monkeypatch):
    tiny_model().save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    config = TargetConfig(source="hf", model=str(tmp_path), dtype=dtype)
    target = load_target(config)
    half = getattr(torch, dtype)
    assert (target.dtype, target.compute_dtype) == (half, torch.float32)
    assert target.backbone.layers[0].down.native.size == (2 if dtype == "bfloat16" else 4)
    rounded = tiny_model()
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(half).float()
    twin = wrap_model(rounded, None, name="twin", folder=tmp_path / "nowhere", dtype=half)
    text, positions = torch.arange(3, 33)[None], torch.arange(30)[None]
    with torch.inference_mode():
        assert target.forward(text, positions, None)[0].equal(twin.forward(text, positions, None)[0])
    without(monkeypatch)
    assert load_target(config).compute_dtype == half


# The compiler.
