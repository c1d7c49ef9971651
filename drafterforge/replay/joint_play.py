"""Drafter and tree chosen together: a full-information selector over pairs of both, in tokens per second.

A pair is an arm.  Traces tell what every arm would have done at every position, and the profile what its cycles cost.
Axes: N arms, P answers, A actions of a drafter, T tokens of prompt and answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes, PlayedCycle
from drafterforge.replay.selector_play import play_selector
from drafterforge.replay.table import build_table, play_static
from drafterforge.replay.trace import Traces
from drafterforge.schedulers.actions import ActionGrid, describe
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.selectors import kind_of
from drafterforge.selectors import selector as build_selector
from drafterforge.selectors.base import Selector
from drafterforge.selectors.delay import Rounds
from drafterforge.selectors.full_information import FullInformation
from drafterforge.tree.grow import TreeShape


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
    drafters = traces.spec.drafters
    seconds = np.concatenate(
        [play_static(build_table(traces, grid, place, profile)) for place in range(len(drafters))], axis=1
    )
    best, found = np.full(len(seconds), np.inf), []
    for _ in range(min(count, seconds.shape[1])):
        place = int(np.minimum(seconds, best[:, None]).sum(axis=0).argmin())
        best = np.minimum(best, seconds[:, place])
        found.append(Arm(drafters[place // len(grid)], grid.shapes[place % len(grid)]))
    return list(dict.fromkeys(found))


class ExactRounds(FullInformation):
    """A learner that is told what a cycle of every arm from a position on would have emitted, and its seconds.

    The pool pass tells who would have accepted a token, but not what a tree's size and pruning make of it: arms of one
    drafter would all look alike.  Traces know, so that no chain of levels is needed; a round still waits until its
    deepest arm's tokens are out.
    """

    def face(self, losses: np.ndarray) -> None:
        """The next answer's losses, of cycles whose root is at each position, [N, T]."""
        self.exact = losses

    def _losses(self, rounds: Rounds) -> np.ndarray:
        return self.exact[:, rounds.positions - 1].T  # a cycle's first token is behind its root


@dataclass(frozen=True)
class JointAnswers:
    """Recorded answers as every arm would have met them."""

    arms: list[Arm]
    counterfactuals: list[Counterfactual]
    seconds: list[np.ndarray]  # of cycles, [N, T] for each answer
    costs: list[float]  # mean seconds of a cycle of each arm

    @staticmethod
    def of(traces: Traces, grid: ActionGrid, profile: LatencyProfile, arms: Sequence[Arm]) -> JointAnswers:
        """From traces and what cycles cost."""
        tables = {
            name: build_table(traces, grid, traces.drafter(name), profile) for name in {arm.drafter for arm in arms}
        }
        actions = [grid.index(arm.shape) for arm in arms]
        chosen = [(tables[arm.drafter], action) for arm, action in zip(arms, actions, strict=True)]
        costs = [float(table.seconds[:, action].mean()) for table, action in chosen]
        taken = np.stack([table.seconds[:, action] for table, action in chosen])
        lengths = np.stack([table.tokens[:, action] for table, action in chosen])
        depths, nodes = (found[:, actions].T for found in (traces.depths(grid), traces.nodes(grid)))
        counterfactuals, seconds = [], []
        for place, (tokens, begin) in enumerate(zip(traces.tokens, traces.begins, strict=True)):
            rows = slice(traces.starts[place], traces.starts[place + 1])
            end, begin = len(tokens), int(begin)
            counterfactuals.append(_story(arms, end, begin, lengths[:, rows], depths[:, rows], nodes[:, rows]))
            seconds.append(_spread(end, begin, taken[:, rows]))
        return JointAnswers(list(arms), counterfactuals, seconds, costs)

    def play(self, make: Any) -> np.ndarray:
        """Seconds of every answer under one selector, [P]."""
        return np.array([self._time(place, cycles) for place, cycles in enumerate(self.run(make))])

    def run(self, make: Any) -> list[list[PlayedCycle]]:
        """One selector through all answers in order; a bandit's cycles are those of a live pool of the arms."""
        chooser: Selector = make()
        played = []
        for place, counterfactual in enumerate(self.counterfactuals):
            if isinstance(chooser, ExactRounds):
                chooser.face(self._losses(place))
            played.append(play_selector(chooser, counterfactual))
        return played

    def _losses(self, place: int) -> np.ndarray:
        """How much every arm's pace falls short of the best there could be, in [0, 1], [N, T]."""
        seconds = self.seconds[place]
        tokens = self.counterfactuals[place].trees[0].accept_length
        pace = np.divide(tokens, seconds, out=np.zeros_like(seconds), where=seconds > 0)
        most = max((depth + 1) / cost for depth, cost in zip(self.depths, self.costs, strict=True))
        return 1.0 - np.minimum(pace / most, 1.0)

    @property
    def depths(self) -> list[int]:
        """Levels of every arm."""
        return [arm.shape.depth for arm in self.arms]

    def alone(self) -> np.ndarray:
        """Seconds of every answer with every arm alone, [P, N]."""
        return np.array(
            [
                [self._time(place, counterfactual.play(lambda _, n=n: n)) for n in range(len(self.arms))]
                for place, counterfactual in enumerate(self.counterfactuals)
            ]
        )

    def _time(self, place: int, cycles: Sequence[PlayedCycle]) -> float:
        return sum(self.seconds[place][cycle.drafter, cycle.position] for cycle in cycles)

    def maker(self, name: str, **options: Any) -> Any:
        """Makes the selector `name` over the arms; a learner is told exact paces, others the arms' mean costs."""
        names, depth = [arm.name for arm in self.arms], max(1, *self.depths)
        kind, preset = kind_of(name)
        if issubclass(kind, FullInformation):
            exact = preset | options | {"hybrid": False}  # of a round that waits, nothing is exact yet
            return lambda: ExactRounds(names, depth, levels=self.depths, **exact)
        return lambda: build_selector(name, names, depth, levels=self.depths, costs=self.costs, **options)

    @property
    def num_tokens(self) -> int:
        """Tokens that cycles emit."""
        return sum(counterfactual.end - 1 - counterfactual.begin for counterfactual in self.counterfactuals)


def _story(
    arms: Sequence[Arm], end: int, begin: int, lengths: np.ndarray, depths: np.ndarray, nodes: np.ndarray
) -> Counterfactual:
    """Of what cycles at the answer's roots are, [N, R]."""
    length, depth, count = (_spread(end, begin, one).astype(np.int64) for one in (lengths, depths, nodes))
    widths = np.repeat([[arm.shape.top_k] for arm in arms], end, axis=1)
    trees = CycleOutcomes(np.maximum(length, 1), depth, np.maximum(count, 1), widths)
    blank = np.zeros((len(arms), end))  # nothing is judged token by token
    return Counterfactual(
        [arm.name for arm in arms], [arm.shape.depth for arm in arms], begin, end, [trees], blank, blank
    )


def _spread(end: int, begin: int, values: np.ndarray) -> np.ndarray:
    """Values of the roots [N, R] at their positions, [N, T]."""
    found = np.zeros((len(values), end))
    found[:, begin : end - 1] = values
    return found
