"""A trial replaces torch by a Triton kernel only where the kernel computes the same, faster."""

from __future__ import annotations

import logging

import pytest
import torch

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.errors import ConfigError
from drafterforge.kernels import attention, gpu_kernels, masks, trees, triton_support
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import GPU, KERNELS
from drafterforge.kernels.masks import additive_mask, pack_reads
from drafterforge.kernels.trials import KernelTrials, agree
from drafterforge.runtime.engine import Engine
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target

CLASS = (torch.float32, 1, 16)


def random_reads(batch: int, count: int, slots: int) -> torch.Tensor:
    """Whether each of `count` queries reads each of `slots` slots, the last of which hold the queries themselves."""
    itself = torch.eye(slots, dtype=torch.bool)[slots - count :]
    return (torch.rand(batch, count, slots) < 0.4) | itself


class Timer:
    """Gives the seconds that were set for an operation, and counts its calls."""

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.calls = seconds, []

    def __call__(self, operation) -> float:
        self.calls.append(operation.__name__)
        return self.seconds[operation.__name__]


def kernel() -> torch.Tensor:
    return torch.ones(3)


def reference() -> torch.Tensor:
    return torch.ones(3)


@pytest.mark.parametrize("kernel_s", [1e-6, 3e-6])
def test_the_faster_operation_is_preferred_after_one_trial_of_each_class(kernel_s):
    timer = Timer(kernel=kernel_s, reference=2e-6)
    trials = KernelTrials(timer)
    for shape_class in (CLASS, (*CLASS, 2)):
        for _ in range(3):
            assert trials.prefers("attention", shape_class, kernel, reference) == (kernel_s < 2e-6)
    assert timer.calls == ["kernel", "reference"] * 2


def test_a_kernel_with_other_results_is_not_timed_and_logged_once(caplog):
    trials = KernelTrials(Timer())
    with caplog.at_level(logging.WARNING):
        for shape_class in (CLASS, (*CLASS, 2)):
            assert not trials.prefers("attention", shape_class, lambda: torch.full((3,), torch.nan), reference)
    assert len(caplog.records) == 1 and "torch computes attention" in caplog.text


def test_a_kernel_that_does_not_compile_is_replaced_by_torch_with_one_line(caplog):
    def broken() -> torch.Tensor:
        raise RuntimeError("out of resource: shared memory\nmore")

    trials = KernelTrials(Timer())
    with caplog.at_level(logging.WARNING):
        for shape_class in (CLASS, (*CLASS, 2)):
            assert not trials.prefers("attention", shape_class, broken, reference)
    assert [record.getMessage() for record in caplog.records] == [
        "torch computes attention instead of Triton: out of resource: shared memory"
    ]


def test_nothing_is_tried_while_a_graph_is_captured():
    capturing = True
    timer = Timer(kernel=1e-6, reference=2e-6)
    trials = KernelTrials(timer, lambda: capturing)
    assert not trials.prefers("attention", CLASS, kernel, reference) and timer.calls == []
    capturing = False
    assert trials.prefers("attention", CLASS, kernel, reference)
    capturing = True
    assert trials.prefers("attention", CLASS, kernel, reference)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_trial_on_a_gpu_times_the_device():
    x = torch.zeros(4096, 4096, device="cuda")
    trials = KernelTrials()
    assert trials.prefers("sum", CLASS, lambda: x[:1, :1], lambda: (x @ x)[:1, :1])
    assert not trials.prefers("sum", (), lambda: (x @ x)[:1, :1], lambda: x[:1, :1])


def test_results_agree_within_the_precision_of_their_dtype():
    x = torch.linspace(-1, 1, 9)
    assert agree((x, x.half()), (x + 1e-6, x.half() + 1e-3)) and agree(x[:0], x[:0])
    for different in (x + 1e-2, x.half(), x[:8], x / 0):
        assert not agree(different, x)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 130])
def test_every_bit_of_packed_reads_is_a_slot(count):
    reads = torch.rand(2, 3, count) < 0.5
    bits = pack_reads(reads)
    assert bits.shape == (2, 3, -(-count // 64)) and bits.dtype == torch.long
    for slot in range(count):
        assert (bits[..., slot // 64] >> (slot % 64) & 1).bool().equal(reads[..., slot])


def masked_pass(exact: bool = False, mask_kind=gpu_kernels.tree_mask):
    """Queries, keys, values and the mask of a pass of two rows."""
    reads, lengths = random_reads(2, 5, 5), torch.tensor([3, 6])
    mask = mask_kind(reads, lengths, 8, torch.float32)
    q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 2, 13, 16), torch.randn(2, 2, 13, 16)
    return q, k, v, mask


@pytest.mark.parametrize("forward", ["lean", "modules"])
def test_an_engine_that_passes_lengths_and_bits_gives_the_text_of_floats(forward, monkeypatch):
    prompts = [[3, 14, 15, 9, 26, 5], [7]]
    expected = [answer.tokens for answer in Engine(tiny_target(forward=forward)).generate(prompts, 12)]
    monkeypatch.setattr(gpu_kernels, "supports", lambda device: False)
    monkeypatch.setitem(KERNELS, ("cpu", torch.float32), GPU)
    target = tiny_target(forward=forward)
    engine = Engine(target, FusedDrafter(tiny_drafter(target), target.backbone.embedding), TreeShape(8, 3, 2))
    assert [answer.tokens for answer in engine.generate(prompts, 12)] == expected


@pytest.mark.parametrize("exact", [False, True])
def test_without_triton_a_tree_mask_gives_the_bits_of_its_floats(exact, monkeypatch):
    monkeypatch.setattr(gpu_kernels, "supports", lambda device: False)
    q, k, v, mask = masked_pass()
    floats = trees.tree_mask(mask.reads, mask.lengths, mask.base, torch.float32)
    assert additive_mask(mask).equal(floats) and additive_mask(floats) is floats and additive_mask(None) is None
    out = gpu_kernels.grouped_attention(q, k, v, mask, exact)
    assert out.equal(attention.grouped_attention(q, k, v, floats, exact))


def test_batch_invariant_passes_never_try_triton(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "supports", lambda device: pytest.fail("asked for Triton"))
    q, k, v, mask = masked_pass()
    gpu_kernels.grouped_attention(q, k, v, mask, True)
    cache = KeyValueCache(1, 2, 2, 16, torch.float32, "cpu")
    cache.set_slots(8, 5)
    cos, sin = torch.ones(10, 1, 1, 8), torch.zeros(10, 1, 2, 8)
    attend = gpu_kernels.rotated_attention(cos, sin, (2, 5), attention.Heads(4, 2, 16), cache, mask, True)
    assert attend(0, torch.randn(10, 8, 16)).shape == (10, 64)


def test_bits_and_floats_are_computed_once_for_all_layers(monkeypatch):
    calls = []
    mask = masked_pass()[3]
    for _ in range(3):
        mask.bits(lambda reads: calls.append("bits") or masks.pack_reads(reads))
        assert mask.folded(2) is mask.folded(2) and mask.additive is mask.additive
    assert calls == ["bits"]


def test_triton_can_be_turned_off(monkeypatch):
    why_not = triton_support.why_not.__wrapped__
    monkeypatch.setenv("DRAFTERFORGE_TRITON", "off")
    assert why_not() == "DRAFTERFORGE_TRITON=off"
    monkeypatch.setenv("DRAFTERFORGE_TRITON", "maybe")
    with pytest.raises(ConfigError, match="DRAFTERFORGE_TRITON='maybe' in the environment; wanted auto or off"):
        why_not()
    monkeypatch.setenv("DRAFTERFORGE_TRITON", "auto")
    monkeypatch.setattr(triton_support, "find_spec", lambda name: None)
    assert why_not() == "Triton is not installed"
