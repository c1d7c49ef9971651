"""An answer as every drafter would have met it, and what became of it when it was played.

Axes: N drafters, T tokens of prompt and answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


class PlayedCycle(NamedTuple):
    """A cycle of a replay."""

    drafter: int
    accept_length: int  # tokens emitted, bonus included, cut at the answer's end
    position: int  # of its root
    depth: int  # levels drafted
    num_nodes: int  # verified, root included
    top_k: int


@dataclass(frozen=True)
class CycleOutcomes:
    """What a cycle of each drafter with its root at each position would be, [N, T]."""

    accept_length: np.ndarray  # tokens emitted, bonus included
    depth: np.ndarray  # levels drafted
    num_nodes: np.ndarray  # verified, root included
    top_k: np.ndarray
    divergence: np.ndarray | None = None  # block divergence of the draft, if it was asked for

    @staticmethod
    def blank(num_drafters: int, end: int) -> CycleOutcomes:
        """Nothing is drafted."""
        one = np.ones((num_drafters, end), dtype=np.int64)
        return CycleOutcomes(one, np.zeros_like(one), one.copy(), one.copy())

    def at(self, drafter: int, root: int) -> tuple[int, int, int, int]:
        """Accept length, depth, nodes and top_k."""
        return tuple(int(part[drafter, root]) for part in (self.accept_length, self.depth, self.num_nodes, self.top_k))

    def only(self, drafters: Sequence[int], scale: float) -> CycleOutcomes:
        """Of some drafters; scale: of divergences, which are means over the pool's levels."""
        rows = list(drafters)
        parts = (part[rows] for part in (self.accept_length, self.depth, self.num_nodes, self.top_k))
        return CycleOutcomes(*parts, None if self.divergence is None else scale * self.divergence[rows])


@dataclass(frozen=True)
class Counterfactual:
    """An answer as every drafter would have met it; position t is the t-th token of prompt and answer.

    A scheduler's choice may stand for several cycles, also of other drafters: then there are trees for every choice.
    """

    names: list[str]
    depths: list[int]  # levels that each drafts at most
    begin: int  # position of the answer's first token, the root of the first cycle
    end: int  # after the answer's last token
    trees: list[CycleOutcomes]  # for every choice that may stand; of drafters without a scheduler all are the same
    gamma: np.ndarray  # [N, T] probability that a token there is accepted; greedy: as `accepted`
    accepted: np.ndarray  # [N, T] whether the token there is among the drafter's proposals
    chosen: np.ndarray | None = None  # [N, T] place among `trees` of what would be chosen there; -1: nothing is
    every: int = 1  # cycles for which that stands

    def cycles(self, drafter: int) -> int:
        """Cycles that the answer takes with this drafter alone."""
        return len(self.play(lambda _: drafter))

    def play(
        self,
        pick: Callable[[int], int],
        after: Callable[[PlayedCycle, float | None], None] = lambda *_: None,
    ) -> list[PlayedCycle]:
        """Play the answer.

        pick(root) names the drafter; after(cycle, divergence) is told, but of the last cycle: a request that has ended
        teaches nothing.
        """
        played, root, standing, kept = [], self.begin, 0, 0
        while root < self.end - 1:
            drafter = pick(root)
            if kept == 0 and self.chosen is not None and self.chosen[drafter, root] >= 0:
                standing, kept = int(self.chosen[drafter, root]), self.every
            kept = max(kept - 1, 0)
            trees = self.trees[standing]
            length, *rest = trees.at(drafter, root)
            cycle = PlayedCycle(drafter, min(length, self.end - 1 - root), root, *rest)
            played.append(cycle)
            root += length
            if root < self.end - 1:
                after(cycle, None if trees.divergence is None else float(trees.divergence[drafter, cycle.position]))
        return played

    def only(self, drafters: Sequence[int]) -> Counterfactual:
        """The same answer for some of the drafters."""
        rows = list(drafters)
        depths = [self.depths[row] for row in rows]
        return replace(
            self,
            names=[self.names[row] for row in rows],
            depths=depths,
            trees=[one.only(rows, max(1, *self.depths) / max(1, *depths)) for one in self.trees],
            gamma=self.gamma[rows],
            accepted=self.accepted[rows],
            chosen=None if self.chosen is None else self.chosen[rows],
        )
