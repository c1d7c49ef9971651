"""A rehearsal catches mixed devices, reads from the device, and what a CUDA graph cannot capture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from drafterforge.kernels import gpu
from drafterforge.kernels.devices import on_gpu
from tests.gpu_rehearsal.tools import (
    CaptureError,
    DeviceMixError,
    UnknownValueError,
    captured,
    rehearse,
    same_shapes,
)

INDEX = torch.tensor([0, 2])


def matrix(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(3, 3, dtype=dtype, device="meta")


MIXES = {
    "matmul": lambda x: x @ torch.ones(3, 3),
    "sum": lambda x: x + torch.ones(3),
    "gather": lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.long)),
    "index": lambda x: x[INDEX],
    "index of a tuple": lambda x: x[:, INDEX],
    "index of a list": lambda x: x[[0, 2]],
    "write by an index": lambda x: x.__setitem__(INDEX, torch.ones(2, 3, device="meta")),
    "index with a number on the host": lambda x: x.index_select(0, torch.tensor(1)),
    "in a list": lambda x: torch.cat([x, torch.ones(1, 3)]),
    "generator": lambda x: x.normal_(generator=torch.Generator()),
    "number on the host that is written": lambda x: torch.tensor(1.0).add_(x.sum()),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("inference", [False, True])
def test_a_mix_of_devices_is_caught(mix: Callable[[Tensor], object], inference: bool):
    with torch.inference_mode(inference), rehearse(), pytest.raises(DeviceMixError, match=r"test_tools\.py:\d+ in "):
        mix(matrix())


def test_a_number_on_the_host_passes_in_elementwise_operations():
    number, x = torch.tensor(2.0), matrix()
    with rehearse() as log, captured():
        y = (x * number + number).clamp(min=0.0)
        assert torch.where(x > 0, y, number).shape == (3, 3)
    assert not log.reads and not log.copies


READS = {
    "item": (lambda x: x.sum().item(), 2.5),
    "bool": (lambda x: bool((x > 0).any()), True),
    "int": (lambda x: int(x.sum()), 3),
    "tolist": (lambda x: x.tolist(), torch.eye(3)),
    "cpu": (lambda x: x.cpu(), torch.eye(3)),
    "to": (lambda x: x.to("cpu"), torch.eye(3)),
    "equal": (lambda x: torch.equal(x, x), True),
    "nonzero": (lambda x: x.nonzero(), torch.zeros(4, 2, dtype=torch.long)),
    "where": (lambda x: torch.where(x > 0)[0], torch.zeros(4, 2, dtype=torch.long)),
    "mask": (lambda x: x[x > 0], torch.zeros(4)),
    "masked_select": (lambda x: x.masked_select(x > 0), torch.zeros(4)),
    "unique": (lambda x: x.unique(), [torch.zeros(4), torch.zeros(0), torch.zeros(0)]),
}


@pytest.mark.parametrize(("read", "value"), READS.values(), ids=READS)
@pytest.mark.parametrize("inference", [False, True])
def test_a_read_is_counted_gets_its_value_and_is_refused_without_one(read, value, inference):
    with torch.inference_mode(inference):
        with rehearse(values=[value]) as log:
            result = read(matrix())
        assert sum(log.reads.values()) == 1
        if isinstance(result, Tensor) and isinstance(value, Tensor):
            assert result.shape[0] == value.shape[0]
        else:
            assert result is not None
        with rehearse(), pytest.raises(UnknownValueError, match=r"test_tools\.py:\d+ in .*reads from the device"):
            read(matrix())
        with rehearse(values=[value]), captured(), pytest.raises(CaptureError):
            read(matrix())


def test_a_read_inside_a_captured_region_raises_only_there():
    x = matrix()
    with rehearse(values=[1.0, 2.0]) as log:
        assert x.sum().item() == 1.0
        with captured(), pytest.raises(CaptureError, match="reads from the device"):
            x.sum().item()
        assert x.sum().item() == 2.0 and not gpu.is_capturing()
    ((label, count),) = log.reads.items()
    assert count == 2 and label.endswith("test_a_read_inside_a_captured_region_raises_only_there: item")


COPIES = {
    "numbers": lambda x: torch.tensor([1, 2], device="meta"),
    "tensor": lambda x: torch.ones(3).to("meta"),
    "into a tensor": lambda x: x.copy_(torch.ones(3)),
    "into a row": lambda x: x.__setitem__(0, torch.ones(3)),
    "a number by an index": lambda x: x.__setitem__(torch.empty(2, dtype=torch.long, device="meta"), 1.0),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_from_the_host_is_counted_and_refused_in_a_captured_region(copy):
    with rehearse() as log:
        copy(matrix())
    assert sum(log.copies.values()) == 1
    with rehearse(), captured(), pytest.raises(CaptureError, match="copies from the host"):
        copy(matrix())


def test_writing_a_number_by_a_mask_neither_reads_nor_copies():
    x = matrix()
    with rehearse() as log, captured():
        x[x > 0] = 1.0
    assert not log.reads and not log.copies


def branchy(x: Tensor) -> Tensor:
    """Reads twice at one line, then as many rows as are positive."""
    sizes = [int(x[row].sum() > 0) + 1 for row in range(2)]
    rows = x[:, 0].cpu()
    positive = x[x > 0]
    return torch.cat((positive.new_zeros(sizes[0] + sizes[1]), positive)) * float(rows[0])


def test_a_real_run_gives_the_values_of_its_rehearsal():
    x = torch.tensor([[1.0, 2.0], [-3.0, 1.0]])
    with rehearse(watched=[(torch, "cat")]) as real:
        expected = branchy(x)
    with rehearse(values=real, watched=[(torch, "cat")]) as log:
        assert branchy(x.to("meta")).shape == expected.shape == (6,)
    same_shapes(real, log)
    kinds = {label.partition(": ")[2]: count for label, count in log.reads.items()}
    assert kinds == {"item": 2, "copy": 1, "mask": 1} and not real.reads


class Halved(torch.autograd.Function):
    """Half of a tensor; reads the device in both passes."""

    @staticmethod
    def forward(ctx, x):
        return x / len(x.tolist())

    @staticmethod
    def backward(ctx, gradient):
        return gradient / len(gradient.tolist())


def test_a_backward_pass_is_rehearsed_too():
    def step(device: str) -> None:
        x = torch.ones(2, device=device, requires_grad=True)
        Halved.apply(x).sum().backward()

    with rehearse() as real:
        step("cpu")
    with rehearse(values=real) as log:
        step("meta")
    assert log.reads == {f"tests.gpu_rehearsal.test_tools.Halved.{name}: copy": 1 for name in ("forward", "backward")}


def test_other_shapes_dtypes_and_numbers_of_calls_are_found():
    def log_of(*values: Tensor):
        with rehearse() as log:
            for value in values:
                log.mark("value", {"nested": [value]})
        return log

    real = log_of(torch.zeros(2))
    same_shapes(real, log_of(torch.zeros(2, device="meta")))
    for different in (
        log_of(torch.zeros(3)),
        log_of(torch.zeros(2, dtype=torch.float64)),
        log_of(torch.zeros(2), torch.zeros(2)),
        log_of(),
    ):
        with pytest.raises(AssertionError):
            same_shapes(real, different)


def test_a_fused_optimiser_runs_as_on_a_gpu():
    weight = torch.nn.Parameter(matrix())
    with rehearse() as log:
        for optimiser in (torch.optim.Adam([weight], fused=True), torch.optim.AdamW([weight])):
            (weight * weight).sum().backward()
            optimiser.step()
    names = {operation.name for operation in log.operations}
    assert "aten._fused_adam_.default" in names and any("_foreach_" in name for name in names)
    assert not log.reads


def test_meta_is_worked_like_a_gpu_and_its_waits_are_empty():
    meta, cpu = torch.device("meta"), torch.device("cpu")
    assert on_gpu(meta) and on_gpu("cuda:0") and not on_gpu(cpu)
    gpu.synchronize(meta)
    assert gpu.event(cpu) is None and gpu.event(meta).elapsed_time(gpu.event(meta)) == 0.0
    done = []
    gpu.warm_up(meta, lambda: done.append("warm"), 2)
    with gpu.use(meta), gpu.capture(meta) as graph:
        assert gpu.is_capturing()
        done.append("captured")
    graph.replay()
    assert done == ["warm", "warm", "captured"] and not gpu.is_capturing()
    assert gpu.peak_bytes(meta) == gpu.reset_peak_bytes(meta) == 0
