"""Drafter and tree chosen together: a full-information selector over pairs of both, in tokens per second.

A pair is an arm.  Traces tell what every arm would have done at every position, and the profile what its cycles cost.
Axes: N arms, P answers, A actions of a drafter, T tokens of prompt and answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafterforge.evaluation.story import Story, replay
from drafterforge.scheduling.actions import ActionGrid, describe
from drafterforge.scheduling.latency import LatencyProfile
from drafterforge.scheduling.replay import Table, build_table, play_static
from drafterforge.scheduling.trace import Traces
from drafterforge.selectors import selector as build_selector
from drafterforge.selectors.base import Selector
from drafterforge.tree.grow import TreeShape
from drafterforge.tree.union import MISSING


@dataclass(frozen=True)
class Arm:
    """A drafter with a tree."""

    drafter: str
    shape: TreeShape

    @property
    def name(self) -> str:
        """Both."""
        return f"{self.drafter} {describe(self.shape)}"


def portfolio(traces: Traces, grid: ActionGrid, profile: LatencyProfile, count: int) -> list[Arm]:
    """Arms among which the best one for each answer takes the fewest seconds, chosen one after the other."""
    drafters = traces.recorded.drafters
    seconds = np.concatenate(
        [play_static(build_table(traces, grid, place, profile)) for place in range(len(drafters))], axis=1
    )
    best, found = np.full(len(seconds), np.inf), []
    for _ in range(min(count, seconds.shape[1])):
        place = int(np.minimum(seconds, best[:, None]).sum(axis=0).argmin())
        best = np.minimum(best, seconds[:, place])
        found.append(Arm(drafters[place // len(grid)], grid.shapes[place % len(grid)]))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class JointContest:
    """Recorded answers as every arm would have met them."""

    arms: list[Arm]
    stories: list[Story]
    seconds: list[np.ndarray]  # of cycles, [N, T] for each answer
    costs: list[float]  # mean seconds of a cycle of each arm

    @staticmethod
    def of(traces: Traces, grid: ActionGrid, profile: LatencyProfile, arms: Sequence[Arm]) -> JointContest:
        """From traces and what cycles cost."""
        tables = {
            name: build_table(traces, grid, traces.drafter(name), profile) for name in {arm.drafter for arm in arms}
        }
        chosen = [(tables[arm.drafter], grid.index(arm.shape)) for arm in arms]
        costs = [float(table.seconds[:, action].mean()) for table, action in chosen]
        hits = np.stack([_hits(traces, arm) for arm in arms])
        stories, seconds = [], []
        for place, (tokens, begin) in enumerate(zip(traces.tokens, traces.begins, strict=True)):
            rows = slice(traces.starts[place], traces.starts[place + 1])
            stories.append(_story(arms, len(tokens), int(begin), chosen, hits[:, rows], rows))
            seconds.append(_spread(len(tokens), int(begin), np.stack([t.seconds[rows, a] for t, a in chosen])))
        return JointContest(list(arms), stories, seconds, costs)

    def play(self, make: Any) -> np.ndarray:
        """Seconds of every answer under one selector, [P]."""
        chooser: Selector = make()
        return np.array([self._time(place, replay(chooser, story)) for place, story in enumerate(self.stories)])

    def alone(self) -> np.ndarray:
        """Seconds of every answer with every arm alone, [P, N]."""
        return np.array(
            [
                [self._time(place, story.play(lambda _, n=n: n)) for n in range(len(self.arms))]
                for place, story in enumerate(self.stories)
            ]
        )

    def _time(self, place: int, cycles: Sequence[tuple[int, int]]) -> float:
        root, total = self.stories[place].begin, 0.0
        for arm, length in cycles:
            total += self.seconds[place][arm, root]
            root += length
        return total

    def maker(self, name: str, **options: Any) -> Any:
        """Makes the selector `name` over the arms, with their costs."""
        levels = self.stories[0].depths
        names = [arm.name for arm in self.arms]
        return lambda: build_selector(name, names, max(1, *levels), levels=levels, costs=self.costs, **options)

    @property
    def num_tokens(self) -> int:
        """Tokens that cycles emit."""
        return sum(story.end - 1 - story.begin for story in self.stories)


def _hits(traces: Traces, arm: Arm) -> np.ndarray:
    """Whether the token after each root is among the arm's proposals for it, [R]."""
    if arm.shape.depth == 0:
        return np.zeros(traces.num_roots)
    width = traces.recorded.top_ks.index(arm.shape.top_k)
    return (traces.rows["ranks"][traces.drafter(arm.drafter)][:, width, 0] != MISSING).astype(float)


def _story(
    arms: Sequence[Arm], end: int, begin: int, chosen: Sequence[tuple[Table, int]], hits: np.ndarray, rows: slice
) -> Story:
    lengths = _spread(end, begin, np.stack([table.tokens[rows, action] for table, action in chosen])).astype(np.int64)
    told = np.zeros((len(arms), end))
    told[:, begin + 1 :] = hits
    return Story(
        [arm.name for arm in arms], [arm.shape.depth for arm in arms], begin, end, np.maximum(lengths, 1), told, told
    )


def _spread(end: int, begin: int, values: np.ndarray) -> np.ndarray:
    """Values of the roots [N, R] at their positions, [N, T]."""
    found = np.zeros((len(values), end))
    found[:, begin : end - 1] = values
    return found
