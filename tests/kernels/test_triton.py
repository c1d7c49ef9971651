"""Triton kernels give the results of torch; Triton's interpreter runs them where there is no GPU."""

from __future__ import annotations

import copy
from importlib import import_module

import pytest
import torch

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.kernels import attention, gpu_kernels, low_rank, trees
from drafterforge.kernels.attention import Heads
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import GPU, KERNELS
from drafterforge.kernels.masks import pack_reads
from drafterforge.kernels.rope import RopeTable
from drafterforge.kernels.trials import KernelTrials
from drafterforge.kernels.triton_support import is_interpreted
from drafterforge.runtime.engine import Engine
from drafterforge.tree.grow import TreeShape
from tests.kernels.test_trials import random_reads
from tests.models import tiny_drafter, tiny_target

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cuda":
    pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="Triton is not installed; it has wheels for Linux on x86-64")
if DEVICE == "cpu" and not is_interpreted():
    pytest.skip("torch sees no GPU; type TRITON_INTERPRET=1 before the command", allow_module_level=True)
triton_attention, triton_lora, triton_masks = (
    import_module(f"drafterforge.kernels.triton_{family}") for family in ("attention", "lora", "masks")
)

GARBAGE = 1e4  # in slots that no query may read
UNWRITTEN = -8.0
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}  # of the largest number


def assert_near(out: torch.Tensor, expected: torch.Tensor) -> None:
    """The error is at most a small part of the largest number."""
    tolerance = TOLERANCE[expected.dtype] * expected.float().abs().max().item()
    torch.testing.assert_close(out, expected, rtol=0.0, atol=tolerance)


def cached_pass(lengths, base, count, slots, heads, dtype):
    """Queries, the used keys and values of a larger cache, and the mask of a pass; unread slots hold garbage."""
    batch = len(lengths)
    q = torch.randn(batch, count, heads.queries, heads.width, device=DEVICE)
    data = torch.randn(2, batch, heads.keys, base + slots + 7, heads.width, device=DEVICE)
    reads = random_reads(batch, count, slots).to(DEVICE)
    if slots > count:
        reads[:, :, 0] = False
        data[:, :, :, base] *= GARBAGE
    for row, length in enumerate(lengths):
        data[:, row, :, length:base] *= GARBAGE
    data[:, :, :, base + slots :] *= GARBAGE
    keys, values = data.to(dtype)[:, :, :, : base + slots]
    mask = gpu_kernels.tree_mask(reads, torch.tensor(lengths, device=DEVICE), base, dtype)
    return q.to(dtype), keys, values, mask


def attend(q, keys, values, mask) -> torch.Tensor:
    """What the Triton kernels compute."""
    bits = triton_masks.pack_reads(mask.reads)
    return triton_attention.tree_attention(q, keys, values, bits, mask.lengths, mask.base)


@pytest.mark.parametrize("count", [1, 7, 63, 64, 65, 130])
def test_bits_of_the_kernel_are_those_of_torch(count):
    reads = (torch.rand(3, 5, count) < 0.5).to(DEVICE)
    assert triton_masks.pack_reads(reads).equal(pack_reads(reads))
    assert triton_masks.pack_reads(reads[:, 1:4, : count // 2]).equal(pack_reads(reads[:, 1:4, : count // 2]))


def test_bits_of_a_tree_are_those_of_its_ancestors():
    parents = torch.tensor([[0, *(node // 2 for node in range(69))], [*range(0, 1), *range(69)]], device=DEVICE)
    ancestors = trees.ancestors(parents, 69)
    assert triton_masks.pack_reads(ancestors).equal(pack_reads(ancestors))


@pytest.mark.parametrize(
    ("count", "group", "width"),
    [(1, 4, 16), (1, 1, 64), (5, 3, 64), (16, 1, 64), (16, 4, 16), (33, 3, 16), (64, 1, 16), (70, 1, 64), (70, 4, 16)],
)
def test_tree_attention_equals_attention_under_the_float_mask(count, group, width):
    q, keys, values, mask = cached_pass((37, 0, 66), 66, count, count, Heads(2 * group, 2, width), torch.float32)
    expected = attention.grouped_attention(q, keys, values, mask.additive, exact=True)
    assert_near(attend(q, keys, values, mask), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 20])
def test_half_precision_sums_in_float32(count, dtype):
    q, keys, values, mask = cached_pass((40, 12), 41, count, count, Heads(4, 2, 32), dtype)
    expected = attention.grouped_attention(q, keys, values, mask.additive, exact=True)
    assert_near(attend(q, keys, values, mask), expected)


@pytest.mark.parametrize(
    ("lengths", "base", "count", "slots", "width"),
    [
        ((0,), 0, 5, 5, 16),
        ((0, 0), 3, 1, 1, 16),
        ((11, 4), 64, 4, 12, 24),
        ((30,), 30, 8, 72, 8),
        ((9, 3), 9, 1, 0, 16),
    ],
    ids=["no text", "no text before the spare slots", "levels", "levels of two words", "text alone"],
)
def test_tree_attention_of_unusual_shapes(lengths, base, count, slots, width):
    heads = Heads(4, 2, width)
    if not slots:  # a drafter's newest token: everything it reads is text
        q, keys, values, _ = cached_pass(lengths, base, count, count, heads, torch.float32)
        keys, values = keys[:, :, :base], values[:, :, :base]
        reads = torch.empty(len(lengths), 1, 0, dtype=torch.bool, device=DEVICE)
        mask = gpu_kernels.tree_mask(reads, torch.tensor(lengths, device=DEVICE), base, torch.float32)
    else:
        q, keys, values, mask = cached_pass(lengths, base, count, slots, heads, torch.float32)
    expected = attention.grouped_attention(q, keys, values, mask.additive, exact=True)
    assert_near(attend(q, keys, values, mask), expected)


@pytest.mark.parametrize("num_parts", [1, 3, 64])
def test_the_number_of_parts_does_not_change_the_result(num_parts, monkeypatch):
    monkeypatch.setattr(triton_attention, "num_parts", lambda programs, most, device: num_parts)
    q, keys, values, mask = cached_pass((150, 3), 151, 6, 6, Heads(2, 1, 16), torch.float32)
    expected = attention.grouped_attention(q, keys, values, mask.additive, exact=True)
    assert_near(attend(q, keys, values, mask), expected)


def test_queries_may_be_a_part_of_a_fused_projection():
    q, keys, values, mask = cached_pass((20, 9), 20, 5, 5, Heads(4, 2, 16), torch.float32)
    qkv = torch.cat((q, torch.randn_like(q)), dim=2)
    assert attend(qkv[:, :, :4], keys, values, mask).equal(attend(q, keys, values, mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [Heads(3, 1, 16), Heads(8, 2, 64), Heads(2, 2, 20)], ids=str)
@pytest.mark.parametrize("is_ragged", [False, True])
def test_rotated_queries_keys_and_values_equal_those_of_torch(is_ragged, heads, dtype):
    shape, positions = (2, 5), torch.tensor([[7, 8, 8, 9, 9], [2, 3, 3, 4, 4]], device=DEVICE)
    cache = KeyValueCache(2, 3, heads.keys, heads.width, dtype, DEVICE)
    cache.num_opened = 1  # a row that is being read stays as it is
    if is_ragged:
        cache.set_ragged_slots(torch.tensor([[4, 5, 9, 7, 8], [0, 3, 1, 2, 6]], device=DEVICE), 10)
    else:
        cache.set_slots(9, 5)
    cache.data.fill_(UNWRITTEN)
    cos, sin = RopeTable(torch.rand(heads.width // 2, device=DEVICE))(positions.flatten(), dtype)
    qkv = torch.randn(10, heads.queries + 2 * heads.keys, heads.width, device=DEVICE).to(dtype)
    caches = [copy.deepcopy(cache) for _ in range(2)]
    writers = gpu_kernels._rotary_writer, attention.rotary_writer
    outs, expected = (
        writer(cos, sin, shape, heads, part)(1, qkv) for writer, part in zip(writers, caches, strict=True)
    )
    for out, reference in zip(outs, expected, strict=True):
        assert_near(out, reference)
    assert_near(caches[0].data, caches[1].data)
    assert (caches[0].data == UNWRITTEN).equal(caches[1].data == UNWRITTEN)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_stacked_low_rank_additions_equal_those_of_torch(rows, is_shared):
    down, up = torch.randn(3, 6, 300, device=DEVICE), torch.randn(3, 6, 90, device=DEVICE)
    x, out = torch.randn(3, rows, 300, device=DEVICE), torch.randn(3, rows, 90, device=DEVICE)
    if is_shared:
        x, out = x[0], out[0]
    assert_near(triton_lora.add_low_rank(out, x, down, up), low_rank.add_low_rank(out, x, down, up))


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_each_row_gets_the_addition_of_its_expert(rows):
    down, up = torch.randn(4, 20, 130, device=DEVICE), torch.randn(4, 20, 65, device=DEVICE)
    x, out = torch.randn(rows, 130, device=DEVICE), torch.randn(rows, 65, device=DEVICE)
    experts = torch.randint(0, 3, (rows,), device=DEVICE)
    added = low_rank.add_expert_low_rank(out, x, down, up, experts)
    slow = [out[i] + (x[i] @ down[e].T) @ up[e] for i, e in enumerate(experts.tolist())]
    torch.testing.assert_close(added, torch.stack(slow), rtol=1e-4, atol=1e-3)
    assert_near(triton_lora.add_expert_low_rank(out, x, down, up, experts), added)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_rank_additions_in_half_precision(dtype):
    down, up, x = (torch.randn(*shape, device=DEVICE).to(dtype) for shape in ((2, 8, 64), (2, 8, 48), (3, 64)))
    out, experts = torch.randn(3, 48, device=DEVICE).to(dtype), torch.tensor([1, 0, 1], device=DEVICE)
    assert_near(triton_lora.add_low_rank(out, x, down, up), low_rank.add_low_rank(out, x, down, up))
    added = low_rank.add_expert_low_rank(out, x, down, up, experts)
    assert_near(triton_lora.add_expert_low_rank(out, x, down, up, experts), added)


@pytest.mark.parametrize("graphs", [False, True])
def test_an_engine_with_triton_kernels_gives_the_text_of_torch(graphs, monkeypatch):
    prompts, dtype = [[3, 14, 15, 9, 26, 5], [7]], torch.float32
    expected = [answer.tokens for answer in Engine(tiny_target(eos_token_id=None)).generate(prompts, 3)]
    trials = KernelTrials(lambda operation: float("reference" in operation.__qualname__))
    monkeypatch.setattr(gpu_kernels, "TRIALS", trials)
    monkeypatch.setitem(KERNELS, (DEVICE, dtype), GPU)
    target = tiny_target(eos_token_id=None, device=DEVICE)
    drafter = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    engine = Engine(target, drafter, TreeShape(4, 2, 2), graphs=graphs)
    assert [answer.tokens for answer in engine.generate(prompts, 3)] == expected
    assert {name for name, _ in trials.outcomes} == {"tree_attention", "rotate_and_write"}
