"""Layers in one call give what their kernels give one by one, and refuse what C would read past."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.propose import draft_levels, layer_and_head, new_draft_cache
from drafterforge.kernels import native
from drafterforge.kernels.attention import additive
from drafterforge.kernels.linear import FrozenLinear
from drafterforge.kernels.native import MOST_QUERIES
from drafterforge.kernels.native_draft import PackedDraftLayer
from drafterforge.kernels.native_layers import PackedDecoder, pack_decoder
from drafterforge.kernels.native_trees import NativeCandidates
from drafterforge.targets.load import Target, wrap_model
from drafterforge.tree.expand import ReachGrowth
from drafterforge.tree.grow import TreeShape
from tests.models import FAMILIES, NORMS, tiny_drafter, tiny_model, tiny_target
from tests.runtime.drafters import lora_drafters

compiled = pytest.mark.skipif(native.library() is None, reason=f"no compiled kernels: {native.why_not()}")
pytestmark = compiled
TEXT = 9  # slots that every row has before the pass


@dataclass
class Pass:
    """Tokens of a pass, and the cache that it reads and writes."""

    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | None

    @classmethod
    def of(cls, batch: int, length: int, mask: bool = True) -> Pass:
        allowed = torch.rand(batch, length, TEXT + length) < 0.7
        allowed[:, :, 0] = True
        positions = TEXT + torch.randint(0, 4, (batch, length))
        return cls(torch.randint(0, 61, (batch, length)), positions, additive(allowed, torch.float32) if mask else None)

    def fill(self, cache, ragged: bool = False):
        """The cache after a text, with the slots of this pass set."""
        torch.manual_seed(3)
        batch, length = self.tokens.shape
        cache.reserve(TEXT + length + 7)
        cache.data[:, :, :, :, :TEXT] = torch.randn(cache.data[:, :, :, :, :TEXT].shape)
        if ragged:
            slots = TEXT + torch.arange(length).flip(0).expand(batch, -1)
            cache.set_ragged_slots(slots, TEXT + length)
        else:
            cache.set_slots(TEXT, length)
        return cache


def widened_target(family: str, dtype: torch.dtype, **changes: object) -> Target:
    """A tiny target whose weights are numbers of a dtype, in float32; those of bfloat16 may be multiplied in it."""
    model = tiny_model(family, **changes).to(dtype).float()
    return wrap_model(model, None, name="tiny", folder=Path("nowhere"), dtype=dtype)


def layers_of(target: Target, of: Pass, ragged: bool) -> list[torch.Tensor]:
    """States, features and the cache after a pass."""
    cache = of.fill(target.new_cache(len(of.tokens)), ragged)
    return [*target.forward(of.tokens, of.positions, cache, of.mask), cache.data]


def assert_same_bits(packed: list[torch.Tensor], single: list[torch.Tensor]) -> None:
    for one_call, many_calls in zip(packed, single, strict=True):
        assert one_call.equal(many_calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("batch", "length", "ragged"), [(1, 1, False), (1, 14, False), (3, 5, True), (2, 1, False)])
@pytest.mark.parametrize("width", [8, 10])
def test_a_target_in_one_call_has_the_bits_of_its_kernels(family, batch, length, ragged, width, dtype, monkeypatch):
    target = widened_target(family, dtype, head_dim=width)
    for of in (Pass.of(batch, length), *([Pass.of(batch, 1, mask=False)] if length == 1 else [])):
        assert target.backbone.packed.takes(of.tokens, length, target.new_cache(batch), of.mask)
        packed = layers_of(target, of, ragged)
        with monkeypatch.context() as single:
            single.setattr(target.backbone, "packed", None)
            assert_same_bits(packed, layers_of(target, of, ragged))


@pytest.mark.parametrize("taps", [(0, 0, 3), (6, 2, 1), (1, 3, 5)])
def test_features_are_the_inputs_of_the_tapped_layers(taps, monkeypatch):
    target, of = tiny_target(taps=taps), Pass.of(2, 4)
    packed = layers_of(target, of, False)
    monkeypatch.setattr(target.backbone, "packed", None)
    assert_same_bits(packed, layers_of(target, of, False))


@pytest.mark.parametrize("member", range(4))
@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("batch", "length", "rows"), [(1, 1, None), (1, 9, [8]), (3, 4, None), (2, 5, [3, 9])])
@pytest.mark.parametrize("size", [1, 4])
def test_a_drafter_and_its_experts_draft_in_one_call(member, norms, residual, batch, length, rows, size, monkeypatch):
    if size == 1 and not native.multiplies_bytes():
        pytest.skip("no AVX512-VNNI")
    target = tiny_target()
    dtype = torch.bfloat16 if size == 1 else torch.float32
    drafter = lora_drafters(target, 4, dtype, norm_before_residual=residual, **NORMS[norms])[member]
    assert {packed.projection.size for packed in drafter.packed.packed} == {size}
    of, hidden = Pass.of(batch, length), torch.randn(batch, 6, 32)
    origin = torch.randint(0, 6, (batch, length))
    rows = None if rows is None else torch.tensor(rows)
    if rows is not None:
        of.mask = of.mask.flatten(0, 1)[rows].unflatten(0, (batch, -1)).contiguous()

    def outputs() -> list[torch.Tensor]:
        cache = of.fill(new_draft_cache(drafter, batch))
        return [*layer_and_head(drafter, cache, of.tokens, hidden, of.positions, of.mask, origin, rows), cache.data]

    assert drafter.packed.takes(of.tokens, of.mask.shape[1], new_draft_cache(drafter, batch), of.mask)
    packed = outputs()
    monkeypatch.setattr(drafter, "packed", None)
    for one_call, many_calls in zip(packed, outputs(), strict=True):  # torch rotates, and may round twice
        # with 8 bits, another last bit may become another step
        torch.testing.assert_close(one_call, many_calls, rtol=1e-4, atol=1e-4 if size == 4 else 0.2)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", [TreeShape(9, 1, 3), TreeShape(12, 4, 1), TreeShape(20, 4, 3), TreeShape(99, 3, 60)])
@pytest.mark.parametrize("least", [None, [0.0, 0.4, 2.0], [0.3, 0.05, 0.1]])
def test_a_draft_in_one_call_is_the_one_level_by_level(batch, shape, least, monkeypatch):
    drafter = lora_drafters(tiny_target(), 4, torch.float32)[1]
    last, stable = torch.randn(batch, 32), torch.tensor([TEXT, 5, 7][:batch])
    logits = drafter.logits(last)
    root = torch.arange(batch) + 40

    def drafted() -> tuple[torch.Tensor, ...]:
        cache = Pass.of(batch, shape.top_k * shape.depth).fill(new_draft_cache(drafter, batch))
        growth = None if least is None else ReachGrowth(shape, least[:batch], root.device)
        tree = draft_levels(drafter, cache, last, root, stable, TEXT, shape, logits, growth)
        decisions = [] if growth is None else growth.reaches
        assert growth is None or len(growth.clock) == len(decisions)
        levels = torch.tensor([0 if growth is None else growth.num_levels])
        return tree.tokens, tree.parents, tree.levels, levels, torch.tensor(decisions)

    calls = []
    draft = PackedDraftLayer.draft
    monkeypatch.setattr(PackedDraftLayer, "draft", lambda *arguments: calls.append(1) or draft(*arguments))
    at_once = drafted()
    assert calls
    monkeypatch.setattr(PackedDraftLayer, "drafts", lambda *arguments: False)
    by_levels = drafted()
    assert len(calls) == 1
    assert_same_bits(at_once[:4], by_levels[:4])
    torch.testing.assert_close(at_once[4].double(), by_levels[4].double())


def test_a_draft_needs_room_and_positions():
    drafter = lora_drafters(tiny_target(), 4, torch.float32)[0]
    cache = Pass.of(1, 6).fill(new_draft_cache(drafter, 1))
    last, stable = torch.randn(1, 32), torch.tensor([TEXT])
    arguments = last, drafter.logits(last), stable, TEXT, (3, 2), drafter.rope, cache

    def pool(batch: int, most: int) -> NativeCandidates:
        return NativeCandidates(batch, most, drafter.token_ids)

    drafter.packed.draft(*arguments, pool(1, 10), None)
    for unfit in (pool(1, 9), pool(2, 10)):
        with pytest.raises(ValueError, match="room for 10"):
            drafter.packed.draft(*arguments, unfit, None)
    with pytest.raises(ValueError, match=r"torch\.float64"):
        drafter.packed.draft(*arguments, pool(1, 10), torch.zeros(1))
    with pytest.raises(IndexError):
        drafter.packed.draft(last, arguments[1], torch.tensor([-2]), *arguments[3:], pool(1, 10), None)


def test_long_texts_are_left_to_kernels_in_blocks():
    target, of = tiny_target(), Pass.of(1, MOST_QUERIES + 1)
    takes, cache = target.backbone.packed.takes, target.new_cache(1)
    assert not takes(of.tokens, MOST_QUERIES + 1, cache, of.mask)
    mask = of.mask[:, 1:].contiguous()
    assert takes(of.tokens[:, 1:], MOST_QUERIES, cache, mask)
    assert not takes(of.tokens[:, 1:], MOST_QUERIES, cache, mask.double())
    assert not takes(of.tokens[:, 1:], MOST_QUERIES, None, mask)
    assert not takes(of.tokens[:, 1:], MOST_QUERIES, of.fill(cache), None)


@pytest.mark.parametrize(("batch", "length"), [(1, 2), (1, MOST_QUERIES), (2, 9)])
def test_a_text_that_begins_has_the_bits_of_its_kernels(batch, length, monkeypatch):
    target, tokens = tiny_target(), torch.randint(0, 61, (batch, length))

    def read() -> list[torch.Tensor]:
        cache = target.new_cache(batch)
        cache.set_slots(0, length)
        positions = torch.arange(length).expand(batch, -1)
        assert target.backbone.packed is None or target.backbone.packed.takes(tokens, length, cache, None)
        return [*target.forward(tokens, positions, cache), cache.data]

    packed = read()
    monkeypatch.setattr(target.backbone, "packed", None)
    assert_same_bits(packed, read())


@pytest.mark.parametrize("change", ["slot", "position", "token", "origin", "row"])
def test_a_number_that_lies_outside_is_refused(change):
    target = tiny_target()
    drafter = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    of, hidden = Pass.of(1, 2), torch.randn(1, 2, 32)
    cache = of.fill(new_draft_cache(drafter, 1))
    origin, rows = torch.zeros(1, 2, dtype=torch.long), torch.tensor([0, 1])
    if change == "slot":
        cache.slots = torch.tensor([[TEXT, -1]])
    else:
        changed = {"position": of.positions, "token": of.tokens, "origin": origin, "row": rows}[change]
        changed[..., -1] = -1 if change == "position" else 61
    with pytest.raises(IndexError, match="out of range"):
        drafter.packed(of.tokens, hidden, origin, of.positions, drafter.rope, cache, of.mask, rows)


def test_other_shapes_are_refused():
    target = tiny_target()
    drafter = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    of, hidden = Pass.of(1, 3), torch.randn(1, 3, 32)
    cache = of.fill(new_draft_cache(drafter, 1))

    def draft(tokens=of.tokens, hidden=hidden, origin=None, cache=cache, mask=of.mask, rows=None) -> None:
        drafter.packed(tokens, hidden, origin, of.positions, drafter.rope, cache, mask, rows)

    draft()
    for changes in (
        {"tokens": of.tokens[:, :2]},
        {"hidden": hidden[..., :16]},
        {"origin": torch.zeros(1, 2, dtype=torch.long)},
        {"mask": of.mask[..., 1:]},
        {"rows": torch.zeros(4, dtype=torch.long)},
        {"cache": of.fill(target.new_cache(2))},
    ):
        with pytest.raises(ValueError, match="wanted"):
            draft(**changes)


def test_a_layer_of_another_dtype_is_left_to_its_kernels():
    backbone = tiny_target("qwen3").backbone
    layer = backbone.layers[0]
    assert pack_decoder([layer], backbone.heads, 1e-5) is not None
    unpacked = FrozenLinear(layer.out.weight.double())
    for changes in ({"out": unpacked}, {"q_norm": layer.q_norm.double()}):
        assert pack_decoder([layer, replace(layer, **changes)], backbone.heads, 1e-5) is None


def test_weights_of_other_widths_are_refused():
    target = tiny_target()
    drafter = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    heads, eps, layer = target.backbone.heads, 1e-5, target.backbone.layers[0]
    parts = drafter.linears, drafter.gains, heads, eps, False, False
    for embedding, linears, gains in (
        (drafter.embedding[:, :16], *parts[:2]),
        (drafter.embedding, drafter.linears | {"down": drafter.linears["head"]}, drafter.gains),
        (drafter.embedding, drafter.linears, drafter.gains | {"norm": drafter.gains["norm"][:16]}),
    ):
        with pytest.raises(ValueError, match="wanted"):
            PackedDraftLayer(embedding, linears, gains, *parts[2:])
    for changes in ({"out": layer.qkv}, {"input_norm": layer.input_norm.double()}):
        with pytest.raises(ValueError, match="wanted"):
            PackedDecoder([replace(layer, **changes)], heads, eps)
