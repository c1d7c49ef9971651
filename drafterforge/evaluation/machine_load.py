"""How many processor cores other programs use while we measure."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)  # columns of a line of /proc/stat: idle, waiting for a disk
GUEST = (8, 9)  # counted among the others already


class MachineLoad:
    """Counts from its creation on.  It knows Linux only: elsewhere `other_cores` is None."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.busy = busy_seconds()
        self.ours = process_seconds()

    def other_cores(self) -> float | None:
        """Mean number of cores that other programs kept busy since then, 0 if the clock is too coarse to tell."""
        elapsed, busy = time.perf_counter() - self.began, busy_seconds()
        if self.busy is None or busy is None or elapsed <= 0:
            return None
        others = busy - self.busy - (process_seconds() - self.ours)
        return max(0.0, others / elapsed)


def busy_seconds() -> float | None:
    """Seconds that all cores together have been busy since the start of the machine; None where it is not told."""
    try:
        columns = STAT.read_text(encoding="ascii").splitlines()[0].split()[1:]
    except (OSError, IndexError):
        return None
    ticks = sum(int(value) for place, value in enumerate(columns) if place not in (*IDLE, *GUEST))
    return ticks / os.sysconf("SC_CLK_TCK")


def process_seconds() -> float:
    """Processor seconds of this process, all its threads."""
    times = os.times()
    return times.user + times.system
