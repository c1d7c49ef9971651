"""Replays selectors that choose drafter and tree together, in tokens per second.

An arm is a pair of drafter and tree.  Traces give the outcome of every arm at every position, the profile its seconds.
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
        return f"{self.drafter} {describe(self.shape)}"


def portfolio(traces: Traces, grid: ActionGrid, profile: LatencyProfile, count: int) -> list[Arm]:
    """Arms chosen greedily, so that the best of them for each answer takes the fewest seconds in total.

    Fewer than `count` if no further arm is the fastest for an answer.
    """
    arms = [Arm(drafter, shape) for drafter in traces.spec.drafters for shape in grid.shapes]
    seconds = play_static(_table(traces, grid, profile, arms))
    best, portfolio = np.full(len(seconds), np.inf), []
    for _ in range(min(count, len(arms))):
        arm = int(np.minimum(seconds, best[:, None]).sum(axis=0).argmin())
        if not (seconds[:, arm] < best).any():
            break
        best = np.minimum(best, seconds[:, arm])
        portfolio.append(arms[arm])
    return portfolio


class ExactRounds(FullInformation):
    """A full-information learner with the exact losses of every arm at every position.

    The pool pass shows which drafter would have proposed a token, but not the effect of a tree's size and pruning, so
    that all arms of a drafter would look alike.  Traces contain it.  A round still waits until the tokens of its
    deepest arm are emitted.
    """

    def set_losses(self, losses: np.ndarray, begin: int) -> None:
        """Set the losses of cycles at each root of the next answer, [N, R]; its first root is at `begin`."""
        self.exact, self.begin_position = losses, begin

    def _losses(self, rounds: Rounds) -> np.ndarray:
        return self.exact[:, rounds.positions - 1 - self.begin_position].T  # the first token follows the root


@dataclass(frozen=True)
class JointAnswers:
    """Recorded answers with the outcomes of every arm."""

    arms: list[Arm]
    table: OutcomeTable  # its actions are the arms
    counterfactuals: list[Counterfactual]

    @staticmethod
    def of(traces: Traces, grid: ActionGrid, profile: LatencyProfile, arms: Sequence[Arm]) -> JointAnswers:
        """The outcomes of arms in traces."""
        table, actions = _table(traces, grid, profile, arms), [grid.index(arm.shape) for arm in arms]
        depths, nodes = (values[:, actions] for values in traces.drafted(grid))
        columns = table.tokens, depths, nodes, np.broadcast_to(grid.table[actions, 2], depths.shape)
        names, levels, counterfactuals = [arm.name for arm in arms], [arm.shape.depth for arm in arms], []
        for number, (tokens, begin) in enumerate(zip(traces.tokens, traces.begins, strict=True)):
            rows = slice(traces.starts[number], traces.starts[number + 1])
            outcomes = CycleOutcomes(*(column[rows].T.astype(np.int64) for column in columns))
            accepted = np.ones((len(arms), len(tokens)))  # a round waits for its deepest arm; losses are exact
            counterfactuals.append(Counterfactual(names, levels, int(begin), len(tokens), [outcomes], accepted))
        return JointAnswers(list(arms), table, counterfactuals)

    @property
    def costs(self) -> list[float]:
        """Mean seconds of a cycle of each arm."""
        return self.table.seconds.mean(axis=0).tolist()

    @property
    def depths(self) -> list[int]:
        """Levels of each arm."""
        return [arm.shape.depth for arm in self.arms]

    @property
    def num_tokens(self) -> int:
        """Tokens emitted by cycles."""
        return self.table.num_roots

    def play(self, make: Callable[[], Selector]) -> np.ndarray:
        """Seconds of each answer with a selector, [P]."""
        return np.array([self._seconds(q, cycles).sum() for q, cycles in enumerate(self.run(make))])

    def _seconds(self, answer: int, cycles: Sequence[PlayedCycle]) -> np.ndarray:
        """Seconds of an answer's cycles."""
        first = self.table.starts[answer] - self.counterfactuals[answer].begin
        rows, arms = [first + cycle.position for cycle in cycles], [cycle.drafter for cycle in cycles]
        return self.table.seconds[rows, arms].astype(float)

    def run(self, make: Callable[[], Selector]) -> list[list[PlayedCycle]]:
        """Replay a selector on all answers in order; bandits have the cycles of a live pool of the arms."""
        selector, losses, played = make(), self._losses(), []
        for number, counterfactual in enumerate(self.counterfactuals):
            if isinstance(selector, ExactRounds):
                rows = slice(self.table.starts[number], self.table.starts[number + 1])
                selector.set_losses(losses[rows].T, counterfactual.begin)
            played.append(play_selector(selector, counterfactual))
        return played

    def _losses(self) -> np.ndarray:
        """Shortfall of each arm's tokens per second from the largest possible, in [0, 1], [R, N]."""
        largest = max((depth + 1) / cost for depth, cost in zip(self.depths, self.costs, strict=True))
        return 1.0 - np.minimum(self.table.tokens / self.table.seconds / largest, 1.0)

    def alone(self) -> np.ndarray:
        """Seconds of each answer with each arm alone, [P, N]."""
        return play_static(self.table)

    def maker(self, name: str, **options: Any) -> Callable[[], Selector]:
        """A factory of the selector `name` over the arms; a learner gets exact losses, others the arms' mean costs."""
        names, depth = [arm.name for arm in self.arms], max(1, *self.depths)
        kind, preset = kind_of(name)
        if issubclass(kind, FullInformation):
            exact = preset | options | {"hybrid": False}  # waiting rounds have no exact losses yet
            return lambda: ExactRounds(names, depth, levels=self.depths, **exact)
        return lambda: build_selector(name, names, depth, levels=self.depths, costs=self.costs, **options)


def _table(traces: Traces, grid: ActionGrid, profile: LatencyProfile, arms: Sequence[Arm]) -> OutcomeTable:
    """The outcomes of arms at each root."""
    drafters = {arm.drafter for arm in arms}
    tables = {name: build_table(traces, grid, traces.drafter(name), profile) for name in drafters}
    columns = [(tables[arm.drafter], grid.index(arm.shape)) for arm in arms]
    tokens = np.stack([table.tokens[:, action] for table, action in columns], axis=1)
    seconds = np.stack([table.seconds[:, action] for table, action in columns], axis=1)
    return replace(columns[0][0], grid=None, tokens=tokens, seconds=seconds)
