"""The form of a paper's table: methods in rows, benchmarks in columns."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.reporting.papers.rows import STATIC
from drafterforge.reporting.papers.step import Reduction
from drafterforge.reporting.papers.steps import commands_of, reductions_of

FIGURES = {  # key -> heading, form, unit
    "mat": ("MAT", ".2f", ""),
    "tokens_per_s": ("tokens/s", ".1f", ""),
    "speedup": ("speed-up", ".2f", "x"),
    "accept_rate": ("block efficiency", ".3f", ""),
    "over_static": ("over the default tree", ".3f", "x"),
    "over_best": ("tokens/s over the best static tree", ".3f", "x"),
    "actions": ("trees used", ".0f", ""),
    "regret_cycles": ("regret in cycles a request", ".2f", ""),
    "verify_ms": ("ms a cycle, target", ".2f", ""),
    "draft_ms": ("ms a cycle, drafters", ".2f", ""),
    "select_ms": ("ms a cycle, selector", ".2f", ""),
    "draft_of_overhead": ("% of the overhead, drafting", ".1f", ""),
    "host_of_overhead": ("% of the overhead, the rest", ".1f", ""),
    "schedule_of_overhead": ("% of the overhead, policy", ".2f", ""),
    "schedule_of_total": ("% of the time, policy", ".2f", ""),
    "accuracy": ("% sent to the right drafter", ".0f", ""),
    "faster_tasks": ("tasks faster than the default tree", ".0f", ""),
    "signal": ("signal strength R", ".4f", ""),
    "priced": ("replayed tokens/s over no drafting", ".2f", "x"),
}
UNTIMED = ("mat", "accept_rate", "regret_cycles", "accuracy", "signal", "priced")  # in no device's seconds
GENERALIST_ALONE, BEST_ALONE = "the generalist", "the best drafter"  # roles of a drafter that drafts alone


@dataclass(frozen=True)
class Line:
    """A method of a paper, and the keys of our matching rows."""

    name: str
    selector: str = STATIC  # of the form `metasd_signal`: the reward
    drafter: str = ""  # the only drafter; empty: the selector chooses
    schedule: str = STATIC
    figures: tuple[str, ...] = ()  # measurable figures; empty: all of the table


@dataclass(frozen=True)
class Form:
    """Form of a paper's table: methods in rows, benchmarks in columns."""

    key: str
    title: str
    caption: str
    columns: dict[str, tuple[str, ...]]  # heading -> domains of our rows; the first measured one counts
    figures: tuple[str, ...]
    lines: tuple[Line, ...]
    steps: tuple[str, ...]  # that measure it, see `steps`
    live: bool = False  # whether live MAT is preferred over replayed MAT, as policies have only live rows
    temperature: float = 0.0  # of the rows that count
    pool: str = ""  # key in `Evidence.pools`; empty: the pool of the other tables
    reduced_in: tuple[str, ...] = ()  # steps that trained what it measures, if these are not `steps`

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that measure it."""
        return commands_of(self.steps)

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """What is smaller in these commands than in the paper."""
        return reductions_of(self.reduced_in or self.steps)


def columns_of(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


ALONE = Line("EAGLE-3 (generalist)", drafter=GENERALIST_ALONE)
