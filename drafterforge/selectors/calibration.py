"""How much less deep levels accept than the pool pass predicts (our reading; HedgeSpec leaves it open).

The pool pass measures a drafter that sees the target's own features, as at level 1; deeper levels see the drafter's
own, and a tree keeps fewer children there.  What was accepted at each level, over what was predicted for it, corrects
that.  Axes: N drafters, K levels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drafterforge.selectors.base import Evaluation, Feedback
from drafterforge.selectors.memory import Memory


class Calibration(Memory):
    """Running means, per drafter and level, over the levels that its own cycles reached."""

    def __init__(self, num_drafters: int, depth: int, rate: float = 0.05) -> None:
        self.num_drafters, self.depth, self.rate = num_drafters, depth, rate
        self.reset()

    def blank_rows(self) -> dict[str, Any]:
        """Running means, [N, K]; one over one until something is known."""
        return {"realised": np.ones(self.depth), "predicted": np.ones(self.depth)}

    def blank(self) -> dict[str, Any]:
        """Cycles whose positions have not been evaluated: drafter, position, accepted levels, reached levels."""
        return {"cycles": []}

    @property
    def factors(self) -> np.ndarray:
        """What to multiply predictions with, [N, K]."""
        return self.realised / np.maximum(self.predicted, 1e-6)

    def played(self, feedback: Feedback) -> None:
        """Remember how far the cycle came."""
        reached = min(feedback.accept_length, feedback.depth, self.depth)
        self.cycles.append([feedback.drafter, feedback.position, feedback.accept_length - 1, reached])

    def extend(self, evaluation: Evaluation) -> None:
        """Compare the cycles that lie in the evaluation with what it predicts for them."""
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
        """Its cycles go with it."""
        super().remove_drafter(index)
        self.cycles = [[i - (i > index), *rest] for i, *rest in self.cycles if i != index]
