"""Peak memory of a piece of work, beyond the memory in use before it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from drafterforge.kernels import gpu
from drafterforge.kernels.devices import on_gpu

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class PeakMemory:
    """Set when the work ends."""

    num_bytes: int | None = None  # None: this system does not report it


@contextlib.contextmanager
def measure_peak(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the work inside: bytes of the allocator on a GPU, resident bytes of the process on Linux."""
    memory = PeakMemory()
    if on_gpu(device):
        before = gpu.reset_peak_bytes(device)
        yield memory
        memory.num_bytes = gpu.peak_bytes(device) - before
        return
    try:
        _trim()
        RESET.write_text("5")  # resets the peak
        before = _resident("VmRSS")
    except OSError:
        yield memory
        return
    yield memory
    memory.num_bytes = max(0, _resident("VmHWM") - before)


def _trim() -> None:
    """Return freed memory to the system; memory reused from the heap would not count."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _resident(key: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return 1024 * int(line.split()[1])
