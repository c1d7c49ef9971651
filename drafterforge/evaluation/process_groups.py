"""The running processes of process groups, and the processor time that they use; Linux only, elsewhere none is seen."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

PROC = Path("/proc")
STATE, GROUP, USED = 0, 2, (11, 12)  # columns of a process's stat, after its name; the last: user and system time
ENDED = ("Z", "X")  # states of processes that only wait to be forgotten


def stat_columns(groups: Collection[int]) -> Iterator[list[str]]:
    """The columns of the stat file of every running process of these groups, after the process's name."""
    for path in PROC.glob("[0-9]*/stat") if groups else ():
        try:
            columns = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if int(columns[GROUP]) in groups and columns[STATE] not in ENDED:
            yield columns


def group_seconds(groups: Collection[int]) -> float:
    """Processor seconds of all running processes of these groups."""
    ticks = sum(int(columns[column]) for columns in stat_columns(groups) for column in USED)
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def is_running(group: int) -> bool:
    """Whether a process of the group runs."""
    return any(True for _ in stat_columns([group]))
