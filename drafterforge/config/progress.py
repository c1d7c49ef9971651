"""What long steps show: a bar with rate and time left on a terminal, a dated line a minute elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

TABLE_WIDTH = 120  # of tables in a file or a pipe, where rich would assume 80 columns and cut
LINE_S = 60.0  # between two lines of a log
WINDOW_S, WINDOW_UPDATES = 60.0, 4  # what the rate is measured over: so many seconds, or updates if that is longer
console = Console(stderr=True, highlight=False)
_open: list[Progress] = []  # the display that is drawn, if any


def table_console() -> Console:
    """Where tables of results go: stdout, at the terminal's width or wide enough; what they hold is text as it is."""
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else TABLE_WIDTH)


class Rate:
    """Units per second of the recent past, which says better than the mean how long the rest takes."""

    def __init__(self, completed: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.updates: deque[tuple[float, float]] = deque([(clock(), completed)])  # time, units

    def reach(self, completed: float) -> None:
        """Record an update, and forget those that are too old."""
        now = self.clock()
        self.updates.append((now, completed))
        while len(self.updates) > WINDOW_UPDATES + 1 and self.updates[1][0] <= now - WINDOW_S:
            self.updates.popleft()

    @property
    def per_s(self) -> float:
        """Units per second from the oldest update to now; a step that hangs lowers it."""
        (began, first), (_, last) = self.updates[0], self.updates[-1]
        return (last - first) / max(self.clock() - began, 1e-9)

    def left_s(self, total: float) -> float | None:
        """Seconds until `total` is reached; None if nothing has moved yet."""
        rate = self.per_s
        return (total - self.updates[-1][1]) / rate if rate > 0 else None


class Bar:
    """One line of progress, from `completed` to `total` units."""

    def __init__(self, progress: Progress, title: str, total: int, completed: int = 0) -> None:
        self.progress, self.rate = progress, Rate(completed)
        self.task = progress.add_task(title, total=total, completed=completed, shown="", left="")
        self.state = progress.tasks[-1]

    def advance(self, count: int = 1, shown: str = "") -> None:
        """Move on by `count`; `shown` is text beside the bar, kept when empty."""
        self.reach(self.state.completed + count, shown)

    def reach(self, count: float, shown: str = "") -> None:
        """Move to `count`."""
        self.rate.reach(count)
        self.progress.update(self.task, completed=count, left=self._left(), **({"shown": shown} if shown else {}))

    def reach_of(self, count: int, total: int) -> None:
        """Move to `count` of `total`."""
        self.progress.update(self.task, total=total)
        self.reach(count)

    def finish(self) -> None:
        """Fill the bar: a step that ended early has reached its end."""
        reached = self.state.completed or self.state.total
        self.progress.update(self.task, total=reached, completed=reached, left="")

    def line(self) -> str:
        """Where it is, in words, for a log."""
        left, state = self._left(), self.state
        parts = [f"{state.completed:.0f}/{state.total:.0f} after {duration(state.elapsed or 0.0)}", left]
        return f"{state.description}: {', '.join(part for part in (*parts, state.fields['shown']) if part)}"

    def _left(self) -> str:
        seconds = self.rate.left_s(self.state.total or 0)
        return "" if seconds is None else f"{duration(seconds)} left"


def duration(seconds: float) -> str:
    """Seconds as one says them: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


@contextmanager
def bar(title: str, total: int, completed: int = 0) -> Iterator[Bar]:
    """A bar that ends full, or stays where it was if it is interrupted; away from a terminal, a line a minute."""
    columns = (
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    fresh = Progress(*columns, console=console, disable=not console.is_terminal)
    with ExitStack() as stack:
        if not _open:  # rich draws one display at a time: a bar inside a bar is its further line
            _open.append(stack.enter_context(fresh))
            stack.callback(_open.clear)
        shown = Bar(_open[0], title, total, completed)
        if not console.is_terminal:
            stack.enter_context(every(LINE_S, lambda: log(shown.line())))
        yield shown
        shown.finish()


@contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` again and again from a thread, however long a step of the main one takes."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say(text: str) -> None:
    """One line about what was done, on stderr."""
    console.print(text, soft_wrap=True, markup=False)


def log(text: str) -> None:
    """One line about what is going on, on stderr; dated away from a terminal."""
    say(text if console.is_terminal else f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")
