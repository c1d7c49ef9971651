"""Signs that times of a report are noisy: wide intervals, a busy machine, sessions under different load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafterforge.reporting.reader import (
    count,
    curves_of,
    interval,
    is_baseline,
    is_live,
    mapping,
    name_with,
    number,
    overall_rows,
    records,
    text,
)

WIDE = 0.4  # width of a 95 % interval over its speed-up
BUSY = 0.5  # cores by which our threads and other programs exceed the machine
MIXED = 0.5  # difference in the cores used by other programs between sessions of a report
LARGE_ERROR = 0.15  # median error of a latency profile on held-out answers
MAX_NAMES = 3
Report = Mapping[str, Any]


def is_wide(row: Mapping[str, Any]) -> bool:
    """Whether the interval of the row's speed-up is wider than `WIDE`."""
    bounds, speedup = interval(row), number(row.get("speedup"))
    return bool(bounds and speedup) and bounds[1] - bounds[0] > WIDE * speedup


def noise_of(report: Report) -> list[str]:
    """A sentence for each sign of noise, and the commands that time and calibrate again; empty without signs."""
    times, profile = [*_wide_rows(report), *_load(report)], _profile(report)
    return [
        *times,
        *_again(report, "again", "time", times),
        *profile,
        *_again(report, "recalibrate", "calibrate", profile),
    ]


def _again(report: Report, key: str, verb: str, signs: Sequence[str]) -> list[str]:
    """What to type after these signs; empty if there are none.  key: of the curve with the command."""
    command = text(curves_of(report).get(key), maximum=2000)
    return [f"To {verb} again on a quiet machine, type: {command}"] if signs and command else []


def _wide_rows(report: Report) -> list[str]:
    timed = [row for row in overall_rows(report) if is_live(row) and not is_baseline(row) and interval(row)]
    wide = [row for row in timed if is_wide(row)]
    if not wide:
        return []
    names = f"all {len(wide)} methods" if len(wide) == len(timed) > 1 else join_names([name_with(row) for row in wide])
    return [f"Wide intervals (over {WIDE:.0%} of the speed-up): {names}."]


def _load(report: Report) -> list[str]:
    machine = mapping(curves_of(report).get("machine"))
    sessions = [
        session for session in records(machine.get("sessions")) if number(session.get("other_cores")) is not None
    ]
    if not sessions:
        return []
    loads = [number(session["other_cores"]) for session in sessions]
    cores, threads, signs = number(machine.get("cores")) or 0, number(machine.get("threads")) or 1, []
    if max(loads) + threads > cores + BUSY:
        signs.append(
            f"Busy machine: other programs used up to {max(loads):.1f} of {cores:.0f} cores, while this one had "
            f"{count(threads)} threads."
        )
    if max(loads) - min(loads) > MIXED:
        signs.append(
            f"Mixed load: the report was resumed, and during its {len(sessions)} sessions other programs "
            f"used {', '.join(f'{load:.1f}' for load in loads)} cores."
        )
    return signs


def _profile(report: Report) -> list[str]:
    error = number(curves_of(report).get("profile_error"))
    if error is None or error <= LARGE_ERROR:
        return []
    return [f"Inexact latency profile: its median error on held-out answers is {error:.0%}."]


def join_names(names: Sequence[str], maximum: int = MAX_NAMES) -> str:
    """The first names and the number of the others."""
    more = f" and {len(names) - maximum} more" if len(names) > maximum else ""
    return ", ".join(names[:maximum]) + more
