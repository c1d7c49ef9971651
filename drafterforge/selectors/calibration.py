"""Corrects the pool pass for deep levels, which accept less than it predicts (ours; HedgeSpec leaves it open).

The pool pass evaluates a drafter on the target's features, as at level 1; deeper levels draft on the drafter's own
features, and a tree keeps fewer children there.  The factor of a level is the mean accepted over the mean predicted.
Axes: N drafters, K levels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drafterforge.selectors.base import Evaluation, Feedback
from drafterforge.selectors.memory import Memory


class Calibration(Memory):
    """Running means, per drafter and level, over the levels that the drafter's own cycles reached."""

    def __init__(self, num_drafters: int, depth: int, rate: float = 0.05) -> None:
        self.num_drafters, self.depth, self.rate = num_drafters, depth, rate
        self.reset()

    def blank_rows(self) -> dict[str, Any]:
        """Running means, [N, K]; their first ratio is 1."""
        return {"realised": np.ones(self.depth), "predicted": np.ones(self.depth)}

    def blank(self) -> dict[str, Any]:
        """Cycles whose positions have not been evaluated: drafter, position, accepted levels, reached levels."""
        return {"cycles": []}

    @property
    def factors(self) -> np.ndarray:
        """Factors for predictions, [N, K]."""
        return self.realised / np.maximum(self.predicted, 1e-6)

    def add_cycle(self, feedback: Feedback) -> None:
        """Remember a cycle until its positions are evaluated."""
        reached = min(feedback.accept_length, feedback.depth, self.depth)
        self.cycles.append([feedback.drafter, feedback.position, feedback.accept_length - 1, reached])

    def extend(self, evaluation: Evaluation) -> None:
        """Compare the cycles inside the evaluation with its predictions."""
        end = evaluation.start + evaluation.gamma.shape[1]
        for drafter, position, accepted, reached in self.cycles:
            if position < evaluation.start or position + reached > end:
                continue
            begin = position - evaluation.start
            predicted = np.asarray(evaluation.gamma[drafter, begin : begin + reached], dtype=np.float64)
            if np.isnan(predicted).any():
                continue
            step = self.rate * ((np.arange(reached) < accepted) - self.realised[drafter, :reached])
            self.realised[drafter, :reached] += step
            self.predicted[drafter, :reached] += self.rate * (predicted - self.predicted[drafter, :reached])
        self.cycles = [cycle for cycle in self.cycles if cycle[1] >= end]

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index` and its cycles."""
        super().remove_drafter(index)
        self.cycles = [[i - (i > index), *rest] for i, *rest in self.cycles if i != index]
