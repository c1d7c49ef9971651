"""Signs that a report's times are noisy: wide intervals, a busy machine, parts measured under different load."""

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
    number,
    records,
    text,
    whole_rows,
)

WIDE = 0.4  # width of a 95 % interval over its speed-up
BUSY = 0.5  # cores that threads of ours lack because other programs use them
MIXED = 0.5  # difference in other programs' cores between sessions of one report
LARGE_ERROR = 0.15  # median error of a latency profile on held-out answers
MOST_NAMES = 3
Report = Mapping[str, Any]


def is_wide(row: Mapping[str, Any]) -> bool:
    """Whether the interval of the row's speed-up is too wide to say much."""
    bounds, speedup = interval(row), number(row.get("speedup"))
    return bool(bounds and speedup) and bounds[1] - bounds[0] > WIDE * speedup


def noise_of(report: Report) -> list[str]:
    """A sentence for each sign of noise, and last the command that measures again; empty if there is no sign."""
    signs = [*_wide_rows(report), *_load(report), *_profile(report)]
    again = text(curves_of(report).get("again"), most=1000)
    return [*signs, f"To time again on a quiet machine, type: {again}"] if signs and again else signs


def _wide_rows(report: Report) -> list[str]:
    timed = [row for row in whole_rows(report) if is_live(row) and not is_baseline(row) and interval(row)]
    wide = [row for row in timed if is_wide(row)]
    if not wide:
        return []
    names = (
        f"all {len(wide)} methods" if len(wide) == len(timed) > 1 else named([text(row.get("method")) for row in wide])
    )
    return [f"Wide intervals, more than {WIDE:.0%} of the speed-up: {names}."]


def _load(report: Report) -> list[str]:
    machine = mapping(curves_of(report).get("machine"))
    sessions = [one for one in records(machine.get("sessions")) if number(one.get("other_cores")) is not None]
    if not sessions:
        return []
    loads = [number(one["other_cores"]) for one in sessions]
    cores, threads, signs = number(machine.get("cores")) or 0, number(machine.get("threads")) or 1, []
    if max(loads) + threads > cores + BUSY:
        signs.append(
            f"Busy machine: other programs used up to {max(loads):.1f} of {cores:.0f} cores, and this one decodes with "
            f"{count(threads)} threads."
        )
    if max(loads) - min(loads) > MIXED:
        signs.append(
            f"Mixed load: the report was resumed, and its {len(sessions)} parts were measured while other programs "
            f"used {', '.join(f'{load:.1f}' for load in loads)} cores."
        )
    return signs


def _profile(report: Report) -> list[str]:
    error = number(curves_of(report).get("profile_error"))
    if error is None or error <= LARGE_ERROR:
        return []
    return [f"The latency profile that prices the schedules is off by {error:.0%} on answers it has not seen."]


def named(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
