"""Fast building blocks equal their slow definitions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from drafterforge.config.trainer import TrainerConfig
from drafterforge.kernels import linear
from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import BLOCK, KeyValueCache
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.kernels.linear import FrozenLinear
from drafterforge.kernels.rope import RopeTable, apply_rope
from drafterforge.runtime.shapes import default_shape
from drafterforge.targets.device import describe_device
from drafterforge.training import trainer as trainer_room
from drafterforge.training.best_checkpoint import BestCheckpoint
from drafterforge.training.trainer import build_trainer

PACKS_BFLOAT16 = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)()

# Linear.


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (2, 24), (7, 24), (3, 5, 24), (24,)])
def test_a_frozen_linear_equals_the_plain_one(shape, bias, pack):
    weight, offset = torch.randn(40, 24), torch.randn(40) if bias else None
    layer = FrozenLinear(weight, offset, pack=pack)
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), F.linear(x, weight, offset), rtol=1e-5, atol=1e-5)


@pytest.fixture
def fresh_capabilities():
    """What the CPU can do is asked again, in the test and after it."""
    capabilities = linear.computes_bfloat16, linear.has_matrix_unit, linear.multiplies_bfloat16_faster
    for capability in capabilities:
        capability.cache_clear()
    yield
    for capability in capabilities:
        capability.cache_clear()


@pytest.mark.parametrize("amx", [True, False])
def test_bfloat16_without_amx_is_no_matrix_unit(amx, fresh_capabilities, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert linear.computes_bfloat16("cpu") and linear.has_matrix_unit("cpu") is amx
    monkeypatch.setattr(linear.native, "multiplies_matrices", lambda: amx)
    for pairs, otherwise in ((True, 10), (False, 6)):
        monkeypatch.setattr("drafterforge.drafters.base.multiplies_bfloat16", lambda pairs=pairs: pairs)
        assert default_shape(torch.device("cpu"), torch.bfloat16).num_tokens == (16 if amx else otherwise)
        assert default_shape(torch.device("cpu"), torch.float32).num_tokens == 6
    assert ("no AMX" in describe_device(torch.device("cpu"))) is not amx


@pytest.mark.parametrize(
    ("avx512", "amx", "seconds", "faster"),
    [(False, False, 1, False), (True, False, 1, True), (True, False, 7, False), (True, True, 7, True)],
)
def test_bfloat16_is_preferred_with_a_matrix_unit_or_where_a_trial_finds_it_faster(
    avx512, amx, seconds, faster, fresh_capabilities, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    clock = [0.0]

    def product(x, weight):
        clock[0] += seconds if x.dtype == torch.bfloat16 else 4

    monkeypatch.setattr(linear.F, "linear", product)
    monkeypatch.setattr(linear.time, "perf_counter", lambda: clock[0])
    assert linear.multiplies_bfloat16_faster("cpu") is faster
    for precision, expected in (("auto", "bf16-mixed" if faster else "32-true"), ("32-true", "32-true")):
        config = TrainerConfig(precision=precision)
        trainer = build_trainer(config, Path("nowhere"), torch.device("cpu"), BestCheckpoint(Path("nowhere"), 1), [])
        assert trainer.precision == expected


def test_the_first_process_chooses_the_precision_for_all(monkeypatch):
    monkeypatch.setattr(trainer_room, "multiplies_bfloat16_faster", lambda kind: pytest.fail("a second trial"))
    monkeypatch.setattr(trainer_room.ranks, "rank", lambda: 1)
    for faster, precision in ((0, "32-true"), (1, "bf16-mixed")):
        monkeypatch.setattr(trainer_room.ranks, "largest", lambda number, faster=faster: faster)
        checkpoint = BestCheckpoint(Path("nowhere"), 1)
        trainer = build_trainer(TrainerConfig(), Path("nowhere"), torch.device("cpu"), checkpoint, [])
        assert trainer.precision == precision


@pytest.mark.skipif(not PACKS_BFLOAT16, reason="oneDNN packs no bfloat16 weights here")
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_a_packed_bfloat16_linear_equals_the_plain_one(rows, monkeypatch):
    monkeypatch.setattr(linear, "computes_bfloat16", lambda kind: True)
    weight, bias, x = (torch.randn(*size).bfloat16() for size in ((64, 48), (64,), (rows, 48)))
    layer = FrozenLinear(weight, bias)
    reference = F.linear(x.float(), weight.float(), bias.float())
    out = layer(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), reference, rtol=1e-2, atol=5e-2)


def test_an_input_that_is_not_contiguous_gives_the_same():
    weight, x = torch.randn(40, 24), torch.randn(24, 6).T
    torch.testing.assert_close(FrozenLinear(weight)(x), F.linear(x, weight), rtol=1e-5, atol=1e-5)


def test_each_row_is_computed_alike_in_every_batch_that_is_packed():
    layer, x = FrozenLinear(torch.randn(40, 24)), torch.randn(9, 24)
    torch.testing.assert_close(torch.stack([layer(row[None])[0] for row in x]), layer(x), rtol=1e-5, atol=1e-5)


# Attention.


def slow_attention(q, k, v, allowed):
    """Keys repeated for each query head, scores masked; [B, T, Hq, D]."""
    group = q.shape[2] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q.transpose(1, 2) @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    return (scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("masks", [1, 2])
@pytest.mark.parametrize("queries", [1, 5])
def test_grouped_attention_equals_repeated_keys_under_a_mask(heads, masks, queries):
    q, k, v = torch.randn(2, queries, heads[0], 8), torch.randn(2, heads[1], 9, 8), torch.randn(2, heads[1], 9, 8)
    allowed = torch.rand(masks, queries, 9) < 0.6
    allowed[..., 0] = True
    out = kernels_of(q).grouped_attention(q, k, v, additive(allowed, q.dtype))
    torch.testing.assert_close(out, slow_attention(q, k, v, allowed.expand(2, -1, -1)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("length", [1, 7])
def test_grouped_attention_without_a_mask_is_causal(heads, length):
    q, k, v = (torch.randn(2, length, heads[0], 8), *torch.randn(2, 2, heads[1], length, 8))
    causal = torch.ones(2, length, length).tril().bool()
    out = kernels_of(q).grouped_attention(q, k, v, None)
    torch.testing.assert_close(out, slow_attention(q, k, v, causal), rtol=1e-5, atol=1e-5)


def test_one_query_without_a_mask_reads_every_key():
    q, k, v = torch.randn(1, 1, 4, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    allowed = torch.ones(1, 1, 6, dtype=torch.bool)
    torch.testing.assert_close(
        kernels_of(q).grouped_attention(q, k, v, None), slow_attention(q, k, v, allowed), rtol=1e-5, atol=1e-5
    )


# Cache.


def filled(batch: int, slots: int) -> KeyValueCache:
    cache = KeyValueCache(2, batch, 3, 4, torch.float32, "cpu")
    cache.set_slots(0, slots)
    for layer in range(2):
        cache.write(layer, torch.randn(batch, slots, 3, 4), torch.randn(batch, slots, 3, 4))
    return cache


def test_what_is_written_is_read_in_place_also_after_growing():
    cache = KeyValueCache(1, 2, 3, 4, torch.float32, "cpu")
    k, v = torch.randn(2, 2, 2 * BLOCK + 5, 3, 4)
    for start, end in ((0, 7), (7, 8), (8, BLOCK), (BLOCK, BLOCK + 3), (BLOCK + 3, 2 * BLOCK + 5)):
        cache.set_slots(start, end - start)
        keys, values = cache.write(0, k[:, start:end], v[:, start:end])
        assert torch.equal(keys, k[:, :end].transpose(1, 2)) and torch.equal(values, v[:, :end].transpose(1, 2))
    assert cache.data.shape[4] == 3 * BLOCK


def test_rows_of_different_lengths_are_written_where_they_end():
    cache = filled(3, 6)
    before = cache.data.clone()
    slots = torch.tensor([[2], [6], [4]])
    cache.set_ragged_slots(slots, 7)
    k, v = torch.randn(2, 3, 1, 3, 4)
    keys, values = cache.write(1, k, v)
    for row, slot in enumerate((2, 6, 4)):
        assert torch.equal(keys[row, :, slot], k[row, 0]) and torch.equal(values[row, :, slot], v[row, 0])
        other_slots = [i for i in range(6) if i != slot]
        assert torch.equal(keys[row][:, other_slots], before[1, 0, row][:, other_slots])
    assert torch.equal(cache.data[0], before[0])


@pytest.mark.parametrize("sources", [[3], [3, 5, 8], [4, 5, 6], [3, 4, 5], [9, 4]])
def test_moving_slots_equals_gathering_first(sources):
    cache = filled(2, 10)
    reference = cache.data.clone()
    reference[:, :, :, :, 3 : 3 + len(sources)] = reference[:, :, :, :, sources].clone()
    rows = [row for row in range(2) for _ in sources]
    cache.move_rows(rows, 2 * sources, 2 * list(range(3, 3 + len(sources))))
    assert torch.equal(cache.data, reference)


def test_keeping_rows_keeps_them_in_order():
    cache = filled(4, 5)
    reference = cache.data[:, :, [2, 0]].clone()
    cache.keep_rows([2, 0])
    assert torch.equal(cache.data, reference)


@pytest.mark.parametrize("rows", [[], [0], [1, 3], [0, 2, 3], [0, 3, 2], [3, 1], [3, 0, 1, 2], [1, 0], [0, 1, 2, 3]])
@pytest.mark.parametrize("num_opened", [0, 1])
def test_rows_that_stay_are_not_copied(rows, num_opened):
    cache = filled(4, 5)
    for _ in range(num_opened):
        cache.open_row(5)
        cache.data[:, :, -1] = 7.0
    reference = cache.data[:, :, [*rows, *[4] * num_opened]].clone()
    memory = cache.memory.data_ptr()
    cache.keep_rows(rows)
    assert torch.equal(cache.data, reference)
    stay_or_move_down = all(old >= new for new, old in enumerate(rows))
    assert (cache.memory.data_ptr() == memory) or not stay_or_move_down


def test_rows_that_leave_make_room_for_rows_that_join():
    cache = filled(4, 5)
    cache.open_row(5)
    cache.admit_row(4)
    memory, first = cache.memory.data_ptr(), cache.data[:, :, 0].clone()
    for _ in range(5):
        cache.keep_rows([0, 2, 3, 4])
        cache.open_row(6)
        cache.admit_row(4)
    assert cache.memory.data_ptr() == memory and torch.equal(cache.data[:, :, 0], first)


def test_a_copy_of_rows_leaves_the_cache_as_it_is():
    cache = filled(4, 5)
    before = cache.data.clone()
    part = cache.copy_rows(torch.tensor([2, 0]))
    assert torch.equal(part.data, before[:, :, [2, 0]])
    part.data.zero_()
    assert torch.equal(cache.data, before)


@pytest.mark.parametrize("places", [[], [1], [2, 0], [0, 1, 2]])
@pytest.mark.parametrize("slots", [5, BLOCK + 5])
def test_rows_are_put_into_free_places_and_behind(places, slots):
    cache, source = filled(3, 7), filled(3, slots)
    old, new = cache.data.clone(), source.data.clone()
    cache.put_rows(source, places)
    assert cache.data.shape[2] == 3 + 3 - len(places)
    rows = [*range(3), *[None] * (3 - len(places))]
    for row in range(cache.data.shape[2]):
        if row in places:
            reference = new[:, :, places.index(row), :, :slots]
        elif rows[row] is None:
            reference = new[:, :, len(places) + row - 3, :, :slots]
        else:
            reference = old[:, :, row, :, :7]
        assert torch.equal(cache.data[:, :, row, :, : reference.shape[3]], reference), row


def test_rows_join_a_cache_with_room_without_moving_the_others():
    cache = KeyValueCache(2, 0, 3, 4, torch.float32, "cpu")
    cache.expect_rows(4)
    sources = [filled(2, 9), filled(2, 6)]
    cache.put_rows(sources[0], [])
    before = cache.data.data_ptr()
    cache.put_rows(sources[1], [1])
    assert cache.data.data_ptr() == before
    assert torch.equal(cache.data[:, :, 0, :, :9], sources[0].data[:, :, 0, :, :9])
    assert torch.equal(cache.data[:, :, 1:3, :, :6], sources[1].data[:, :, :, :, :6])


def test_rows_may_come_from_a_cache_that_grew_to_another_size():
    cache, source = filled(1, 2 * BLOCK + 1), filled(1, 3 * BLOCK + 1)  # three blocks, which grow by half, and four
    before = cache.data.clone(), source.data.clone()
    cache.put_rows(source, [])
    for row, data in enumerate(before):
        slots = data.shape[4]
        torch.testing.assert_close(cache.data[:, :, row : row + 1, :, :slots], data)


def test_rows_put_into_an_empty_cache_are_its_rows():
    cache, source = KeyValueCache(2, 0, 3, 4, torch.float32, "cpu"), filled(2, 6)
    cache.put_rows(source, [])
    assert torch.equal(cache.data, source.data)


# Rope.

ROPES = {
    "plain": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 256},
}


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_rope_equals_transformers(rope):
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=4, head_dim=8, max_position_embeddings=1024, rope_parameters=rope
    )
    module = LlamaRotaryEmbedding(config)
    table = RopeTable(module.inv_freq, module.attention_scaling)
    q, k = torch.randn(2, 2, 4, 9, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [90, 5, 5, 300, 1000, 1023, 2, 0, 77]])
    wanted_q, wanted_k = apply_rotary_pos_emb(q, k, *module(q, positions))
    cos, sin = table(positions, torch.float32)
    torch.testing.assert_close(apply_rope(q.transpose(1, 2), cos, sin), wanted_q.transpose(1, 2))
    torch.testing.assert_close(apply_rope(k.transpose(1, 2), cos, sin), wanted_k.transpose(1, 2))


def test_the_table_grows_to_any_position_without_changing():
    table = RopeTable(torch.tensor([1.0, 0.1, 0.01]))
    early, _ = table(torch.arange(5), torch.float32)
    far, _ = table(torch.tensor([5000]), torch.float32)
    torch.testing.assert_close(far[0, 0, 0], (5000 * torch.tensor([1.0, 0.1, 0.01])).cos())
    assert torch.equal(table(torch.arange(5), torch.float32)[0], early)


def test_no_positions_give_no_angles():
    cos, sin = RopeTable(torch.ones(3))(torch.empty(0, dtype=torch.long), torch.float32)
    assert cos.shape == (0, 1, 1, 3)
    assert sin.shape == (0, 1, 2, 3)


# RMS norm.


@pytest.mark.parametrize("shape", [(1, 16), (5, 16), (4, 3, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_lean_norm_equals_the_library_s(shape, dtype):
    x, gain = torch.randn(shape).to(dtype) * 50, torch.rand(16).to(dtype)
    with torch.inference_mode():
        torch.testing.assert_close(kernels_of(x).rms_norm(x, gain, 1e-5), F.rms_norm(x, (16,), gain, 1e-5))
        rotated = torch.randn(4, 5, 16).to(dtype)[:, :3]  # not contiguous, as the queries of a fused projection
        torch.testing.assert_close(
            kernels_of(rotated).rms_norm(rotated, gain, 1e-5), F.rms_norm(rotated, (16,), gain, 1e-5)
        )
