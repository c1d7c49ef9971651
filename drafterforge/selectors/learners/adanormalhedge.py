"""AdaNormalHedge (Luo, Schapire 2015): no rate, no equation to solve; bounds of first order."""

from __future__ import annotations

from typing import Any

import numpy as np

from drafterforge.selectors.learners.base import Learner


def adanormalhedge_law(regrets: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Weights in proportion to Phi(R + 1, C + 1) - Phi(R - 1, C + 1), [..., N]; uniform where all are zero.

    Phi(R, C) = exp([R]_+^2 / 3C).  regrets R and spreads C, the sum of |r|: [..., N].
    """
    high = np.maximum(regrets + 1.0, 0.0) ** 2 / (3.0 * (spreads + 1.0))
    low = np.maximum(regrets - 1.0, 0.0) ** 2 / (3.0 * (spreads + 1.0))
    weights = -np.expm1(low - high) * np.exp(high - high.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / regrets.shape[-1])


class AdaNormalHedge(Learner):
    """Keeps the sum of |r| beside the regrets."""

    def blank_rows(self) -> dict[str, Any]:
        """Regrets and the sum of their absolute values."""
        return {**super().blank_rows(), "spreads": 0.0}

    def law(self) -> np.ndarray:
        """Weights, [N]."""
        return adanormalhedge_law(self.regrets, self.spreads)

    def learn(self, regrets: np.ndarray) -> None:
        """Add a round's regrets [N]."""
        super().learn(regrets)
        self.spreads = self.discount * self.spreads + np.abs(regrets)
