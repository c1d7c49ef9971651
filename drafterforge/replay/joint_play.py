"""Drafter and tree chosen together: a full-information selector over pairs of both, in tokens per second.

A pair is an arm.  Traces hold what every arm would have done at every position, the profile what its cycles cost.
Axes: N arms, P answers, R roots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes, PlayedCycle
from drafterforge.replay.selector_play import play_selector
from drafterforge.replay.table import OutcomeTable, build_table, play_static
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
    arms = [Arm(drafter, shape) for drafter in traces.spec.drafters for shape in grid.shapes]
    seconds = play_static(_table(traces, grid, profile, arms))
    best, portfolio = np.full(len(seconds), np.inf), []
    for _ in range(min(count, len(arms))):
        arm = int(np.minimum(seconds, best[:, None]).sum(axis=0).argmin())
        best = np.minimum(best, seconds[:, arm])
        portfolio.append(arms[arm])
    return list(dict.fromkeys(portfolio))


class ExactRounds(FullInformation):
    """A learner that is given what a cycle of every arm from a position on would have emitted, and its seconds.

    The pool pass shows who would have accepted a token, but not what a tree's size and pruning make of it: arms of one
    drafter would all look alike.  Traces know, so that no chain of levels is needed; a round still waits until its
    deepest arm's tokens are out.
    """

    def set_losses(self, losses: np.ndarray, begin: int) -> None:
        """The next answer's losses, of cycles at each of its roots, [N, R], the first of which is at `begin`."""
        self.exact, self.begin_position = losses, begin

    def _losses(self, rounds: Rounds) -> np.ndarray:
        return self.exact[:, rounds.positions - 1 - self.begin_position].T  # a cycle's first token is behind its root


@dataclass(frozen=True)
class JointAnswers:
    """Recorded answers with the outcomes of every arm."""

    arms: list[Arm]
    table: OutcomeTable  # its actions are the arms
    counterfactuals: list[Counterfactual]

    @staticmethod
    def of(traces: Traces, grid: ActionGrid, profile: LatencyProfile, arms: Sequence[Arm]) -> JointAnswers:
        """From traces and what cycles cost."""
        table, actions = _table(traces, grid, profile, arms), [grid.index(arm.shape) for arm in arms]
        depths, nodes = (values[:, actions] for values in traces.drafted(grid))
        columns = table.tokens, depths, nodes, np.broadcast_to(grid.table[actions, 2], depths.shape)
        names, levels, counterfactuals = [arm.name for arm in arms], [arm.shape.depth for arm in arms], []
        for number, (tokens, begin) in enumerate(zip(traces.tokens, traces.begins, strict=True)):
            rows = slice(traces.starts[number], traces.starts[number + 1])
            outcomes = CycleOutcomes(*(column[rows].T.astype(np.int64) for column in columns))
            accepted = np.zeros((len(arms), len(tokens)))  # nothing is judged token by token
            counterfactuals.append(Counterfactual(names, levels, int(begin), len(tokens), [outcomes], accepted))
        return JointAnswers(list(arms), table, counterfactuals)

    @property
    def costs(self) -> list[float]:
        """Mean seconds of a cycle of each arm."""
        return self.table.seconds.mean(axis=0).tolist()

    @property
    def depths(self) -> list[int]:
        """Levels of every arm."""
        return [arm.shape.depth for arm in self.arms]

    @property
    def num_tokens(self) -> int:
        """Tokens that cycles emit."""
        return self.table.num_roots

    def play(self, make: Callable[[], Selector]) -> np.ndarray:
        """Seconds of every answer under one selector, [P]."""
        return np.array([self._seconds(q, cycles).sum() for q, cycles in enumerate(self.run(make))])

    def _seconds(self, answer: int, cycles: Sequence[PlayedCycle]) -> np.ndarray:
        """Seconds of an answer's cycles."""
        first = self.table.starts[answer] - self.counterfactuals[answer].begin
        rows, arms = [first + cycle.position for cycle in cycles], [cycle.drafter for cycle in cycles]
        return self.table.seconds[rows, arms].astype(float)

    def run(self, make: Callable[[], Selector]) -> list[list[PlayedCycle]]:
        """One selector through all answers in order; a bandit's cycles are those of a live pool of the arms."""
        selector, losses, played = make(), self._losses(), []
        for number, counterfactual in enumerate(self.counterfactuals):
            if isinstance(selector, ExactRounds):
                rows = slice(self.table.starts[number], self.table.starts[number + 1])
                selector.set_losses(losses[rows].T, counterfactual.begin)
            played.append(play_selector(selector, counterfactual))
        return played

    def _losses(self) -> np.ndarray:
        """How much every arm's tokens a second fall short of the most there could be, in [0, 1], [R, N]."""
        most = max((depth + 1) / cost for depth, cost in zip(self.depths, self.costs, strict=True))
        return 1.0 - np.minimum(self.table.tokens / self.table.seconds / most, 1.0)

    def alone(self) -> np.ndarray:
        """Seconds of every answer with every arm alone, [P, N]."""
        return play_static(self.table)

    def maker(self, name: str, **options: Any) -> Callable[[], Selector]:
        """Makes the selector `name` over the arms; a learner gets exact losses, others the arms' mean costs."""
        names, depth = [arm.name for arm in self.arms], max(1, *self.depths)
        kind, preset = kind_of(name)
        if issubclass(kind, FullInformation):
            exact = preset | options | {"hybrid": False}  # of a round that waits, nothing is exact yet
            return lambda: ExactRounds(names, depth, levels=self.depths, **exact)
        return lambda: build_selector(name, names, depth, levels=self.depths, costs=self.costs, **options)


def _table(traces: Traces, grid: ActionGrid, profile: LatencyProfile, arms: Sequence[Arm]) -> OutcomeTable:
    """The outcomes of arms at every root."""
    drafters = {arm.drafter for arm in arms}
    tables = {name: build_table(traces, grid, traces.drafter(name), profile) for name in drafters}
    columns = [(tables[arm.drafter], grid.index(arm.shape)) for arm in arms]
    tokens = np.stack([table.tokens[:, action] for table, action in columns], axis=1)
    seconds = np.stack([table.seconds[:, action] for table, action in columns], axis=1)
    return replace(columns[0][0], grid=None, tokens=tokens, seconds=seconds)
