"""Calls of CUDA, in one module; each does nothing on a device without streams, such as the CPU and `meta`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from drafterforge.kernels.devices import on_gpu


class Event(Protocol):
    """A moment in the work of a device."""

    def record(self) -> None:
        """Set the moment: when the device has done all work that was queued before."""

    def synchronize(self) -> None:
        """Wait for the moment."""

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds to a later moment."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Queue the work again."""


class IdleEvent:
    """An event of `meta`, where nothing takes time."""

    def record(self) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def elapsed_time(self, later: Event) -> float:
        """No time."""
        return 0.0


class IdleGraph:
    """A graph of `meta`: its work was done once and left the shapes that a replay would."""

    def replay(self) -> None:
        """Do nothing."""


def synchronize(device: torch.device) -> None:
    """Wait for all work of a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def use(device: torch.device) -> AbstractContextManager:
    """Make a GPU the current one inside a `with` block: streams, events and graphs are those of the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting for the device."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def event(device: torch.device) -> Event | None:
    """The current moment in the work of a GPU, for timing; None on a CPU, whose work is done when a call returns."""
    if not on_gpu(device):
        return None
    moment = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else IdleEvent()
    moment.record()
    return moment


def device_name(device: torch.device) -> str:
    """The model of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type}, which has no values"


def reset_peak_bytes(device: torch.device) -> int:
    """Start the measurement of `peak_bytes`; returns the bytes that tensors take now."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak_bytes(device: torch.device) -> int:
    """Most bytes that tensors took since `reset_peak_bytes`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def free_bytes(device: torch.device) -> int:
    """Free memory of a GPU."""
    return torch.cuda.mem_get_info(device)[0]


def free_host_bytes() -> float:
    """Free memory of the machine; infinite where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), float("inf"))


class _Capture(threading.local):
    depth = 0


_capture = _Capture()


def is_capturing() -> bool:
    """Whether this thread is inside `capture`, where nothing may be read from the device."""
    return _capture.depth > 0


def warm_up(device: torch.device, work: Callable[[], object], repeats: int) -> None:
    """Do work `repeats` times on a side stream, as CUDA wants before a capture; on other devices here."""
    if device.type != "cuda":
        for _ in range(repeats):
            work()
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(repeats):
            work()
    torch.cuda.current_stream(device).wait_stream(stream)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a GPU's captures: torch's default one is that of the first GPU that a process has captured on."""
    return torch.cuda.Stream(device)


@contextmanager
def capture(device: torch.device, pool: Graph | None = None) -> Iterator[Graph]:
    """Yields the graph of the work inside the `with` block; on `meta` the work is done once, and a replay is empty.

    pool: an earlier graph, whose memory this one shares.
    """
    _capture.depth += 1
    try:
        if device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            memory = None if pool is None else pool.pool()
            # `thread_local`: what other threads of a server do on the GPU meanwhile must not end the capture
            stream = _capture_stream(device)
            with torch.cuda.graph(graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
                yield graph
        else:
            yield IdleGraph()
    finally:
        _capture.depth -= 1
