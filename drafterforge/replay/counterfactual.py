"""Counterfactuals: the cycle of every drafter of a pool at every position of a recorded answer, and their replay.

Decoding is lossless: the text does not depend on the drafter.  A cycle that begins at a position therefore has one
outcome for each drafter and tree, whatever cycles preceded it.
Axes: N drafters, R roots (positions at which a cycle can begin), T tokens of prompt and answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np


class PlayedCycle(NamedTuple):
    """A replayed cycle."""

    drafter: int
    accept_length: int  # tokens emitted, bonus included, cut at the end of the answer
    position: int  # of its root
    depth: int  # levels drafted
    num_nodes: int  # verified nodes, root included
    top_k: int


@dataclass(frozen=True)
class CycleOutcomes:
    """Outcome of a cycle of each drafter at each root, [N, R]."""

    accept_length: np.ndarray  # tokens emitted, bonus included
    depth: np.ndarray  # levels drafted
    num_nodes: np.ndarray  # verified nodes, root included
    top_k: np.ndarray
    coverage: np.ndarray | None = None  # of the draft, if recorded; see `tree.coverage`
    overlap: np.ndarray | None = None  # of target and drafter, if recorded; see `tree.coverage`

    @staticmethod
    def undrafted(num_drafters: int, num_roots: int) -> CycleOutcomes:
        """Cycles that emit only the bonus token."""
        ones = np.ones((num_drafters, num_roots), dtype=np.int64)
        return CycleOutcomes(ones, np.zeros_like(ones), ones.copy(), ones.copy())

    def arrays(self) -> dict[str, np.ndarray]:
        """The recorded arrays by name."""
        return {key.name: array for key in fields(self) if (array := getattr(self, key.name)) is not None}

    def branch(self, drafter: int, root: int) -> dict[str, float]:
        """Coverage and overlap of a drafter's draft at a root, if recorded."""
        recorded = {"coverage": self.coverage, "overlap": self.overlap}
        return {key: float(array[drafter, root]) for key, array in recorded.items() if array is not None}

    def select(self, drafters: Sequence[int], scale: float) -> CycleOutcomes:
        """Outcomes of some drafters.  scale: factor of coverages, which are means over the levels of the pool."""
        arrays = {key: array[list(drafters)] for key, array in self.arrays().items()}
        return CycleOutcomes(**arrays).per_level(1 / scale)

    def per_level(self, levels: float) -> CycleOutcomes:
        """The outcomes with coverages divided by `levels`."""
        return self if self.coverage is None else replace(self, coverage=self.coverage / levels)


@dataclass(frozen=True)
class Counterfactual:
    """Cycles of each drafter at each position of an answer, with the trees of one scheduler.

    Position t is the t-th token of prompt and answer.  A scheduler may hold a choice for several cycles, also of other
    drafters: then there are outcomes for every choice.
    """

    names: list[str]
    depths: list[int]  # maximum levels of each drafter
    begin: int  # position of the answer's first token, the root of the first cycle
    end: int  # after the answer's last token
    outcomes: list[CycleOutcomes]  # for every choice that may be held; equal for drafters without a scheduler
    accepted: np.ndarray  # [N, T] 1 if the token is among the drafter's proposals, else 0 (greedy)
    choices: np.ndarray | None = None  # [N, R] index in `outcomes` of the choice made at the root; -1: no choice
    hold_cycles: int = 1  # cycles for which a choice is held
    prompt_hit_rates: np.ndarray | None = None  # [N] see `Selector.read_prompt`; None: not recorded

    @property
    def num_tokens(self) -> int:
        """Tokens emitted by cycles: all but the first."""
        return self.end - 1 - self.begin

    def cycles(self, drafter: int) -> int:
        """Number of cycles with this drafter alone."""
        return len(self.play(lambda _: drafter))

    def play(
        self,
        pick: Callable[[int], int],
        after: Callable[[PlayedCycle, dict[str, float]], None] = lambda *_: None,
    ) -> list[PlayedCycle]:
        """Replay the answer.

        pick(root) returns the drafter; after(cycle, branch) is called after every cycle but the last, as in live
        decoding, with the coverage and overlap of its draft, if they were recorded.
        """
        played, root, choice, num_held = [], 0, 0, 0
        while root < self.num_tokens:
            drafter = pick(self.begin + root)
            if num_held == 0 and self.choices is not None and self.choices[drafter, root] >= 0:
                choice, num_held = int(self.choices[drafter, root]), self.hold_cycles
            num_held = max(num_held - 1, 0)
            outcomes = self.outcomes[choice]
            length, depth, num_nodes, top_k = (
                int(array[drafter, root])
                for array in (outcomes.accept_length, outcomes.depth, outcomes.num_nodes, outcomes.top_k)
            )
            length = min(length, self.num_tokens - root)
            cycle = PlayedCycle(drafter, length, self.begin + root, depth, num_nodes, top_k)
            played.append(cycle)
            root += length
            if root < self.num_tokens:
                after(cycle, outcomes.branch(drafter, root - length))
        return played

    def select(self, drafters: Sequence[int]) -> Counterfactual:
        """The counterfactual of some of the drafters."""
        rows = list(drafters)
        depths = [self.depths[row] for row in rows]
        scale = max(1, *self.depths) / max(1, *depths)
        return replace(
            self,
            names=[self.names[row] for row in rows],
            depths=depths,
            outcomes=[outcomes.select(rows, scale) for outcomes in self.outcomes],
            accepted=self.accepted[rows],
            prompt_hit_rates=None if self.prompt_hit_rates is None else self.prompt_hit_rates[rows],
            choices=None if self.choices is None else self.choices[rows],
        )
