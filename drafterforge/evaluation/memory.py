"""Most memory that a piece of work held beyond what was held before it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Held:
    """Filled when the work is done."""

    num_bytes: int | None = None  # None: this system does not tell


@contextlib.contextmanager
def peak(device: torch.device) -> Iterator[Held]:
    """Measures what is done inside: the allocator's bytes on a GPU, resident bytes of the process on Linux."""
    held = Held()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield held
        held.num_bytes = torch.cuda.max_memory_allocated(device) - before
        return
    try:
        _trim()
        RESET.write_text("5")  # the peak is counted from here on
        before = _resident("VmRSS")
    except OSError:
        yield held
        return
    yield held
    held.num_bytes = max(0, _resident("VmHWM") - before)


def _trim() -> None:
    """Give freed memory back to the system: what is taken from it again would look as if it cost nothing."""
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


def _resident(key: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return 1024 * int(line.split()[1])
