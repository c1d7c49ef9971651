"""Delays rounds of full information until they are complete.

Round t scores a cycle that begins at position t, which needs the measurements at t .. t + K - 1.  One cycle measures
fewer positions unless all its levels are accepted; scored by these alone, every drafter would be cut where the selected
one failed.  So a round waits, for at most 2 K positions, until later cycles have measured the rest.
It waits only for drafters that could still go on: one that has missed, or that drafts fewer levels, is judged by what
is known.  So a deep drafter delays rounds only while it is accepted.
Axes: N drafters, K levels, L measured positions in the queue, R complete rounds.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors.base import Evaluation
from drafterforge.selectors.memory import Memory
from drafterforge.selectors.probabilities import measured

GRANULARITIES = ("token", "chunk")


class Rounds(NamedTuple):
    """Rounds, ordered by position."""

    positions: np.ndarray  # [R]
    gamma: np.ndarray  # [R, N, K]
    accepted: np.ndarray  # [R, N, K]
    probs: np.ndarray  # [R, ..., N] what was played in the cycle that emitted the position, see `Learner.played`
    begins: np.ndarray  # [R] bool: whether a cycle begins at the position


class DelayQueue(Memory):
    """Measurements of a growing answer.  granularity: every `token` starts a round, or every cycle (`chunk`)."""

    def __init__(
        self, num_drafters: int, depth: int, granularity: str = "token", levels: np.ndarray | None = None
    ) -> None:
        """levels: that each drafter drafts, [N]; None: `depth`."""
        self.num_drafters, self.depth, self.granularity = num_drafters, depth, granularity
        self.levels = np.full(num_drafters, depth) if levels is None else np.minimum(levels, depth)
        self.reset()

    def blank_rows(self) -> dict[str, Any]:
        """Measurements from position `start` on, [N, L]."""
        return {"gamma": np.empty(0), "accepted": np.empty(0)}

    def blank(self) -> dict[str, Any]:
        """Cycles that emitted positions from `start` on: the first position and the distribution of each."""
        return {"start": 0, "begins": [], "probs": []}

    @property
    def end(self) -> int:
        """The position after the last measured one."""
        return self.start + self.gamma.shape[1]

    def add_cycle(self, position: int, probs: np.ndarray) -> None:
        """Add a cycle that emitted tokens from `position` on, with `probs` [..., N], see `Learner.played`."""
        self.begins.append(position)
        self.probs.append(probs.tolist())

    def extend(self, evaluation: Evaluation) -> Rounds:
        """Add measurements; returns the completed rounds.  After a gap in positions, open rounds are dropped."""
        gamma, accepted = measured(evaluation.gamma, "gamma"), measured(evaluation.accepted, "accepted")
        if gamma.ndim != 2 or len(gamma) != self.num_drafters or gamma.shape != accepted.shape:
            raise DrafterforgeError(
                f"gamma and accepted must be [{self.num_drafters}, n], got {gamma.shape} and {accepted.shape}"
            )
        if evaluation.start != self.end:
            self.start, self.gamma, self.accepted = evaluation.start, gamma, accepted
        else:
            self.gamma = np.concatenate((self.gamma, gamma), axis=1)
            self.accepted = np.concatenate((self.accepted, accepted), axis=1)
        stop = max(self.end - self.depth + 1, self.start)  # rounds that begin before it are complete
        while stop < self.end and self._is_judged(stop):
            stop += 1
        rounds = self._rounds(stop, self.depth)
        self.gamma, self.accepted = self.gamma[:, stop - self.start :], self.accepted[:, stop - self.start :]
        self.start = stop
        past = max(bisect_right(self.begins, stop) - 1, 0)  # the cycle that covers `stop` stays
        del self.begins[:past], self.probs[:past]
        return rounds

    def _is_judged(self, position: int) -> bool:
        """Whether further measurements cannot change the round that begins at a position."""
        gamma, accepted = (values[:, position - self.start :] for values in (self.gamma, self.accepted))
        missed = (gamma.prod(axis=1) == 0) & (accepted.prod(axis=1) == 0)
        return bool((missed | (self.levels <= gamma.shape[1]) | np.isnan(gamma).any(axis=1)).all())

    def open_rounds(self) -> Rounds:
        """Incomplete rounds, with the measurements of their first position: K = 1."""
        return self._rounds(self.end, 1)

    def rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean gamma and mean accepted of the measurements in the queue, [N] each; NaN without any."""
        return _means(self.gamma), _means(self.accepted)

    def _rounds(self, stop: int, depth: int) -> Rounds:
        """Rounds that begin before `stop`, with `depth` measurements each."""
        first = max(self.start, self.begins[0]) if self.begins else stop  # positions before it belong to no known cycle
        starts = range(first, stop) if self.granularity == "token" else [t for t in self.begins if first <= t < stop]
        positions = np.array(starts, dtype=int)
        if not len(positions):
            empty = np.empty((0, self.num_drafters, depth))
            return Rounds(positions, empty, empty, empty[..., 0], np.zeros(0, dtype=bool))
        probs = [self.probs[bisect_right(self.begins, t) - 1] for t in starts]
        windows = positions[:, None] - self.start + np.arange(depth)  # [R, K]
        gamma, accepted = (_in_windows(part, windows) for part in (self.gamma, self.accepted))
        begins = set(self.begins)
        return Rounds(positions, gamma, accepted, np.array(probs), np.array([t in begins for t in starts]))

    def add_drafter(self) -> None:
        """Add a drafter without measurements."""
        self.levels = np.append(self.levels, self.depth)
        unknown = np.full((1, self.gamma.shape[1]), np.nan)
        self.gamma, self.accepted = (np.concatenate((values, unknown)) for values in (self.gamma, self.accepted))
        self.probs = [np.insert(probs, self.num_drafters, 0.0, axis=-1).tolist() for probs in self.probs]
        self.num_drafters += 1

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index`, its measurements and probabilities."""
        super().remove_drafter(index)
        self.levels = np.delete(self.levels, index)
        self.probs = [np.delete(probs, index, axis=-1).tolist() for probs in self.probs]


def _in_windows(values: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Values [N, L] in windows of positions [R, K], [R, N, K]; 0 after the last, which cannot change a judged round."""
    if (missing := windows[-1, -1] + 1 - values.shape[1]) > 0:
        values = np.concatenate((values, np.zeros((len(values), missing))), axis=1)
    return values[:, windows].swapaxes(0, 1)


def _means(values: np.ndarray) -> np.ndarray:
    """Means of [N, L] without NaN, [N]; NaN in rows of nothing else."""
    is_measured = ~np.isnan(values)
    counts = is_measured.sum(axis=1)
    return np.where(counts > 0, np.where(is_measured, values, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)
