"""Rounds of full information, held back until they are complete.

Round t asks how a cycle that begins at position t would have gone; that takes the measurements at t .. t + K - 1.
A chunk shows fewer, unless its drafter was right throughout: judged by the chunk alone, every drafter would be cut
where the chosen one failed.  So rounds wait, at most 2 K positions, until later chunks have shown the rest.
Axes: N drafters, K levels, L positions held, R complete rounds.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors.base import Evaluation
from drafterforge.selectors.laws import measured
from drafterforge.selectors.memory import Memory

GRANULARITIES = ("token", "chunk")


class Rounds(NamedTuple):
    """Complete rounds, first position first."""

    positions: np.ndarray  # [R]
    gamma: np.ndarray  # [R, N, K]
    accepted: np.ndarray  # [R, N, K]
    probs: np.ndarray  # [R, N] the law played in the cycle that emitted the position


class DelayQueue(Memory):
    """Measurements of a growing answer; at granularity `token` every position starts a round, at `chunk` cycles do."""

    def __init__(self, num_drafters: int, depth: int, granularity: str = "token") -> None:
        self.num_drafters, self.depth, self.granularity = num_drafters, depth, granularity
        self.reset()

    def blank_rows(self) -> dict[str, Any]:
        """Measurements from position `start` on, [N, L]."""
        return {"gamma": np.empty(0), "accepted": np.empty(0)}

    def blank(self) -> dict[str, Any]:
        """Cycles that emitted positions from `start` on: where each began, and the law played in it."""
        return {"start": 0, "begins": [], "laws": []}

    @property
    def end(self) -> int:
        """The position after the last one measured."""
        return self.start + self.gamma.shape[1]

    def played(self, position: int, probs: np.ndarray) -> None:
        """A cycle emitted tokens from `position` on; its drafter came from the law `probs` [N]."""
        self.begins.append(position)
        self.laws.append(probs.tolist())

    def extend(self, evaluation: Evaluation) -> Rounds:
        """Add measurements; returns the rounds they complete.  Where positions are missing, open rounds are dropped."""
        gamma, accepted = measured(evaluation.gamma, "gamma"), measured(evaluation.accepted, "accepted")
        if gamma.ndim != 2 or len(gamma) != self.num_drafters or gamma.shape != accepted.shape:
            raise DrafterforgeError(
                f"an evaluation of {self.num_drafters} drafters holds [N, n] twice, got {gamma.shape}, {accepted.shape}"
            )
        if evaluation.start != self.end:
            self.start, self.gamma, self.accepted = evaluation.start, gamma, accepted
        else:
            self.gamma = np.concatenate((self.gamma, gamma), axis=1)
            self.accepted = np.concatenate((self.accepted, accepted), axis=1)
        stop = max(self.end - self.depth + 1, self.start)  # rounds before it are complete
        rounds = self._rounds(stop, self.depth)
        self.gamma, self.accepted = self.gamma[:, stop - self.start :], self.accepted[:, stop - self.start :]
        self.start = stop
        past = max(bisect_right(self.begins, stop) - 1, 0)  # the cycle that covers `stop` stays
        del self.begins[:past], self.laws[:past]
        return rounds

    def open_rounds(self) -> Rounds:
        """Rounds that still wait, with what is measured at their first position alone: K = 1."""
        return self._rounds(self.end, 1)

    def rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Means of the gamma and of the accepted that are held, [N] each; NaN for a drafter that has none."""
        return _means(self.gamma), _means(self.accepted)

    def _rounds(self, stop: int, depth: int) -> Rounds:
        """Rounds that begin before `stop`, of `depth` measurements each."""
        first = max(self.start, self.begins[0]) if self.begins else stop  # no cycle emitted what comes before
        starts = range(first, stop) if self.granularity == "token" else [t for t in self.begins if first <= t < stop]
        positions = np.array(starts, dtype=int)
        if not len(positions):
            empty = np.empty((0, self.num_drafters, depth))
            return Rounds(positions, empty, empty, empty[..., 0])
        laws = [self.laws[bisect_right(self.begins, t) - 1] for t in starts]
        windows = positions[:, None] - self.start + np.arange(depth)  # [R, K]
        gamma, accepted = (values[:, windows].swapaxes(0, 1) for values in (self.gamma, self.accepted))
        return Rounds(positions, gamma, accepted, np.array(laws))

    def add_drafter(self) -> None:
        """The newcomer was not measured so far."""
        unknown = np.full((1, self.gamma.shape[1]), np.nan)
        self.gamma, self.accepted = (np.concatenate((held, unknown)) for held in (self.gamma, self.accepted))
        self.laws = [[*law, 0.0] for law in self.laws]
        self.num_drafters += 1

    def remove_drafter(self, index: int) -> None:
        """Its measurements go, and its share of the laws."""
        super().remove_drafter(index)
        self.laws = [[*law[:index], *law[index + 1 :]] for law in self.laws]


def _means(held: np.ndarray) -> np.ndarray:
    """Over what of [N, L] is not NaN, [N]."""
    there = ~np.isnan(held)
    counts = there.sum(axis=1)
    return np.where(counts > 0, np.where(there, held, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)
