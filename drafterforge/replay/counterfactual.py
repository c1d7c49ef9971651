"""What every drafter of a pool would have done at every position of a recorded answer, and how an answer is played.

Decoding is lossless: the text does not depend on who drafted it.  A cycle that begins at a position therefore has one
outcome for each drafter and tree, whichever cycles came before.
Axes: N drafters, R roots (the positions at which a cycle can begin), T tokens of prompt and answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
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
    """What a cycle of each drafter at each root would be, [N, R]."""

    accept_length: np.ndarray  # tokens emitted, bonus included
    depth: np.ndarray  # levels drafted
    num_nodes: np.ndarray  # verified, root included
    top_k: np.ndarray
    divergence: np.ndarray | None = None  # block divergence of the draft, if it was recorded

    @staticmethod
    def undrafted(num_drafters: int, num_roots: int) -> CycleOutcomes:
        """Cycles that emit the bonus token alone."""
        ones = np.ones((num_drafters, num_roots), dtype=np.int64)
        return CycleOutcomes(ones, np.zeros_like(ones), ones.copy(), ones.copy())

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that were recorded, by name."""
        return {key.name: array for key in fields(self) if (array := getattr(self, key.name)) is not None}

    def select(self, drafters: Sequence[int], scale: float) -> CycleOutcomes:
        """Those of some drafters.  scale: of divergences, which are means over the levels of the pool."""
        arrays = {key: array[list(drafters)] for key, array in self.arrays().items()}
        return CycleOutcomes(**arrays).per_level(1 / scale)

    def per_level(self, levels: float) -> CycleOutcomes:
        """With divergences divided by so many levels."""
        return self if self.divergence is None else replace(self, divergence=self.divergence / levels)


@dataclass(frozen=True)
class Counterfactual:
    """What each drafter of a pool would have done at each position of an answer, with the trees of one scheduler.

    Position t is the t-th token of prompt and answer.  A scheduler's choice may stand for several cycles, also of other
    drafters: then there are outcomes for every choice.
    """

    names: list[str]
    depths: list[int]  # levels that each drafter drafts at most
    begin: int  # position of the answer's first token, the root of the first cycle
    end: int  # after the answer's last token
    outcomes: list[CycleOutcomes]  # for every choice that may stand; equal for drafters that no scheduler serves
    accepted: np.ndarray  # [N, T] whether the token is among the drafter's proposals; as probability 0 or 1: greedy
    choices: np.ndarray | None = None  # [N, R] index in `outcomes` of the choice made at the root; -1: none is made
    hold_cycles: int = 1  # cycles for which a choice stands

    @property
    def num_tokens(self) -> int:
        """Tokens that cycles emit: all but the first."""
        return self.end - 1 - self.begin

    def cycles(self, drafter: int) -> int:
        """Cycles that the answer takes with this drafter alone."""
        return len(self.play(lambda _: drafter))

    def play(
        self,
        pick: Callable[[int], int],
        after: Callable[[PlayedCycle, float | None], None] = lambda *_: None,
    ) -> list[PlayedCycle]:
        """Play the answer.

        pick(root) returns the drafter; after(cycle, divergence) is called after every cycle but the last, from whose
        request nothing more is learned.
        """
        played, root, standing, kept = [], 0, 0, 0
        while root < self.num_tokens:
            drafter = pick(self.begin + root)
            if kept == 0 and self.choices is not None and self.choices[drafter, root] >= 0:
                standing, kept = int(self.choices[drafter, root]), self.hold_cycles
            kept = max(kept - 1, 0)
            outcomes = self.outcomes[standing]
            length, depth, num_nodes, top_k = (
                int(array[drafter, root])
                for array in (outcomes.accept_length, outcomes.depth, outcomes.num_nodes, outcomes.top_k)
            )
            length = min(length, self.num_tokens - root)
            cycle = PlayedCycle(drafter, length, self.begin + root, depth, num_nodes, top_k)
            divergence = None if outcomes.divergence is None else float(outcomes.divergence[drafter, root])
            played.append(cycle)
            root += length
            if root < self.num_tokens:
                after(cycle, divergence)
        return played

    def select(self, drafters: Sequence[int]) -> Counterfactual:
        """The same answer for some of the drafters."""
        rows = list(drafters)
        depths = [self.depths[row] for row in rows]
        scale = max(1, *self.depths) / max(1, *depths)
        return replace(
            self,
            names=[self.names[row] for row in rows],
            depths=depths,
            outcomes=[outcomes.select(rows, scale) for outcomes in self.outcomes],
            accepted=self.accepted[rows],
            choices=None if self.choices is None else self.choices[rows],
        )
