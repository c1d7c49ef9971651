"""What the pipelines show while they work: bars with rate and time left on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from drafterforge.config.bundle import ImportConfig
from drafterforge.config.commands import CalibrateConfig, EvaluateConfig, PrepareDataConfig, TrainPolicyConfig
from drafterforge.config.names import typed_taps

TABLE_WIDTH = 120  # of tables in a file or a pipe, where rich would assume 80 columns and cut
QUIET_S = 20.0  # what ends sooner needs no lines
console = Console(stderr=True, highlight=False)


def table_console() -> Console:
    """Where tables of results go: stdout, at the terminal's width or wide enough; what they hold is text as it is."""
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else TABLE_WIDTH)


class Bar:
    """One line of progress."""

    def __init__(self, progress: Progress, title: str, total: int) -> None:
        self.progress, self.task = progress, progress.add_task(title, total=total, shown="")
        self.began, self.tenth = time.perf_counter(), 0

    def advance(self, count: int = 1, shown: str = "") -> None:
        """Move on by `count`; `shown` is text beside the bar, kept when empty."""
        self._move(advance=count, **({"shown": shown} if shown else {}))

    def reach(self, count: int, shown: str = "") -> None:
        """Move to `count`."""
        self._move(completed=count, **({"shown": shown} if shown else {}))

    def reach_of(self, count: int, total: int) -> None:
        """Move to `count` of `total`."""
        self._move(completed=count, total=total)

    def _move(self, **changes: Any) -> None:
        """Move; away from a terminal, say so at every tenth of what takes long."""
        self.progress.update(self.task, **changes)
        if console.is_terminal:
            return
        task, seconds = self.progress.tasks[self.task], time.perf_counter() - self.began
        tenth = int(10 * task.completed / task.total) if task.total else 0
        if tenth > self.tenth and seconds > QUIET_S:
            shown = f", {task.fields['shown']}" if task.fields["shown"] else ""
            say(f"{task.description}: {task.completed:.0f}/{task.total:.0f} after {seconds:.0f} s{shown}")
        self.tenth = max(self.tenth, tenth)


@contextmanager
def bar(title: str, total: int) -> Iterator[Bar]:
    """A bar that is closed whatever happens."""
    columns = (
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
    )
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        yield Bar(progress, title, total)


def same_target(
    cfg: PrepareDataConfig | ImportConfig | EvaluateConfig | TrainPolicyConfig | CalibrateConfig,
) -> str:
    """What to type besides, so that the next command finds what this one wrote; empty for the defaults."""
    typed = ""
    if cfg.target.source == "hf":
        typed += f" target=hf target.model={cfg.target.model}"
        typed += f" target.name={cfg.target.name}" if cfg.target.name else ""
    typed += f" {typed_taps(cfg.target.taps)}" if cfg.target.taps else ""
    return typed + (f" runs_dir={cfg.runs_dir}" if cfg.runs_dir != type(cfg).runs_dir else "")


def say(text: str) -> None:
    """One line about what was done, on stderr."""
    console.print(text, soft_wrap=True, markup=False)
