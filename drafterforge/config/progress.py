"""Progress of long steps: a bar with rate and time left on a terminal, otherwise dated lines."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

TABLE_WIDTH = 120  # columns of tables in a file or pipe, where rich assumes 80 and truncates
LINE_S = 60.0  # between two lines of a log
FIRST_LINE_S = 10.0  # from the beginning of a step to its first line
WINDOW_S, WINDOW_UPDATES = 60.0, 4  # the rate is measured over this time or number of updates, whichever is longer
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # control and direction of text


class SafeConsole(Console):
    """Replaces characters that steer a terminal, because lines and tables quote files of unknown origin."""

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        return super().render_str(_UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text), **options)


console = SafeConsole(stderr=True, highlight=False)
_open: list[Progress] = []  # the display being drawn, if any


def table_console() -> Console:
    """The console for result tables: stdout, without markup, never narrower than the tables."""
    return SafeConsole(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else TABLE_WIDTH)


class Rate:
    """Units per second over the last updates, which predict the remaining time better than the overall mean."""

    def __init__(self, completed: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.updates: deque[tuple[float, float]] = deque([(clock(), completed)])  # time, units

    def reach(self, completed: float) -> None:
        """Record an update and drop those outside the window."""
        now = self.clock()
        self.updates.append((now, completed))
        while len(self.updates) > WINDOW_UPDATES + 1 and self.updates[1][0] <= now - WINDOW_S:
            self.updates.popleft()

    @property
    def per_s(self) -> float:
        """Units per second from the oldest update until now, so the rate falls while nothing happens."""
        (began, first), (_, last) = self.updates[0], self.updates[-1]
        return (last - first) / max(self.clock() - began, 1e-9)

    def left_s(self, total: float) -> float | None:
        """Estimated seconds until `total`; None before the first progress."""
        rate = self.per_s
        return (total - self.updates[-1][1]) / rate if rate > 0 else None


class Bar:
    """A line of progress, from `completed` to `total` units."""

    def __init__(self, progress: Progress, title: str, total: int, completed: int = 0) -> None:
        self.progress, self.rate = progress, Rate(completed)
        self.task = progress.add_task(title, total=total, completed=completed, status="", left="")
        self.state = progress.tasks[-1]

    def advance(self, count: int = 1, status: str = "") -> None:
        """Add `count` units.  status: new text beside the bar; empty keeps the old one."""
        self.reach(self.state.completed + count, status)

    def reach(self, count: float, status: str = "") -> None:
        """Set the number of completed units."""
        self.rate.reach(count)
        self.progress.update(self.task, completed=count, left=self._left(), **({"status": status} if status else {}))

    def update(self, count: int, total: int) -> None:
        """Set the numbers of completed units and of all units."""
        self.progress.update(self.task, total=total)
        self.reach(count)

    def finish(self) -> None:
        """Fill the bar, also if the step ended early."""
        end = self.state.completed or self.state.total
        self.progress.update(self.task, total=end, completed=end, left="")

    def line(self) -> str:
        """The progress as a line of a log."""
        left, state = self._left(), self.state
        parts = [f"{state.completed:.0f}/{state.total:.0f} after {duration(state.elapsed or 0.0)}", left]
        return f"{state.description}: {', '.join(part for part in (*parts, state.fields['status']) if part)}"

    def _left(self) -> str:
        seconds = self.rate.left_s(self.state.total or 0)
        return "" if seconds is None else f"{duration(seconds)} left"


def duration(seconds: float) -> str:
    """Seconds as text: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


@contextmanager
def bar(title: str, total: int, completed: int = 0) -> Iterator[Bar]:
    """Yields a progress bar, which is filled when the block ends; without a terminal, a line per minute is logged."""
    columns = (
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    fresh = Progress(*columns, console=console, disable=not console.is_terminal)
    with ExitStack() as stack:
        if not _open:  # rich draws only one display, so a nested bar becomes a line of the outer one
            _open.append(stack.enter_context(fresh))
            stack.callback(_open.clear)
        line = Bar(_open[0], title, total, completed)
        if not console.is_terminal:
            stack.enter_context(call_periodically(LINE_S, lambda: log(line.line()), FIRST_LINE_S))
        yield line
        line.finish()


@contextmanager
def call_periodically(seconds: float, act: Callable[[], None], first_s: float) -> Iterator[None]:
    """Call `act` after `first_s` and then at this interval, from another thread, until the block ends."""
    ended = threading.Event()

    def repeat() -> None:
        wait_s = first_s
        while not ended.wait(wait_s):
            act()
            wait_s = seconds

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say(text: str) -> None:
    """Print a line on stderr."""
    console.print(text, soft_wrap=True, markup=False)


def log(text: str) -> None:
    """Print a line on stderr, with the date unless stderr is a terminal."""
    say(text if console.is_terminal else f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")
