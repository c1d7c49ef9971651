"""Measures how many processor cores other programs use."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.process_groups import group_seconds

PROC_STAT = Path("/proc/stat")
IDLE_COLUMNS = (3, 4)  # columns of a line of /proc/stat: idle, waiting for a disk
GUEST_COLUMNS = (8, 9)  # already included in other columns


def load_by_session(measurements: Sequence[Measurement], threads: int) -> dict[str, Any]:
    """The curve `machine` of a report: load while timing.  A session is one uninterrupted run."""
    by_session: dict[int, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.source == "live" and measurement.other_cores is not None:
            by_session.setdefault(measurement.session, []).append(measurement)
    sessions = [
        {
            "began": datetime.fromtimestamp(session, UTC).isoformat(timespec="seconds"),
            "requests": len({(m.axis, m.at, m.temperature, len(m.answers), m.group) for m in parts}),
            "other_cores": round(median(measurement.other_cores for measurement in parts), 2),
        }
        for session, parts in sorted(by_session.items())
    ]
    return {"cores": os.cpu_count(), "threads": threads, "sessions": sessions} if sessions else {}


class MachineLoad:
    """Cores used by other programs since its creation.  Linux only: elsewhere `other_cores` is None."""

    def __init__(self, groups: Collection[int] = ()) -> None:
        """groups: of processes that are not other programs, because they are measured too."""
        self.groups, self.began = groups, time.perf_counter()
        self.busy_s = busy_seconds()
        self.process_s = process_seconds() + group_seconds(groups)

    def other_cores(self) -> float | None:
        """Mean number of cores that other programs kept busy; 0 if the clock is too coarse."""
        elapsed, busy_s = time.perf_counter() - self.began, busy_seconds()
        if self.busy_s is None or busy_s is None or elapsed <= 0:
            return None
        other_s = busy_s - self.busy_s - (process_seconds() + group_seconds(self.groups) - self.process_s)
        return max(0.0, other_s / elapsed)


def busy_seconds() -> float | None:
    """Busy seconds of all cores together since boot; None where the system does not report them."""
    try:
        columns = PROC_STAT.read_text(encoding="ascii").splitlines()[0].split()[1:]
    except (OSError, IndexError):
        return None
    ticks = sum(int(value) for column, value in enumerate(columns) if column not in (*IDLE_COLUMNS, *GUEST_COLUMNS))
    return ticks / os.sysconf("SC_CLK_TCK")


def process_seconds() -> float:
    """Processor seconds of all threads of this process."""
    times = os.times()
    return times.user + times.system
