"""How many processor cores other programs use while we measure."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from drafterforge.evaluation.measurements import Measurement

STAT = Path("/proc/stat")
IDLE = (3, 4)  # columns of a line of /proc/stat: idle, waiting for a disk
GUEST = (8, 9)  # counted among the others already


def machine_of(measurements: Sequence[Measurement], threads: int) -> dict[str, Any]:
    """Load while timing, as the report's curve `machine` has it: a session is a run without interruption."""
    by_session: dict[int, list[Measurement]] = {}
    for one in measurements:
        if one.source == "live" and one.other_cores is not None:
            by_session.setdefault(one.session, []).append(one)
    sessions = [
        {
            "began": datetime.fromtimestamp(session, UTC).isoformat(timespec="seconds"),
            "requests": len({(one.axis, one.at, one.group) for one in parts}),
            "other_cores": round(median(one.other_cores for one in parts), 2),
        }
        for session, parts in sorted(by_session.items())
    ]
    return {"cores": os.cpu_count(), "threads": threads, "sessions": sessions} if sessions else {}


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
