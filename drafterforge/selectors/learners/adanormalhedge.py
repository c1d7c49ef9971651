"""AdaNormalHedge (Luo, Schapire 2015): no learning rate, no equation to solve; first-order bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from drafterforge.selectors.learners.base import Learner


def adanormalhedge_probs(regrets: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Probabilities in proportion to Phi(R + 1, C + 1) - Phi(R - 1, C + 1), [..., N]; uniform where all are 0.

    Phi(R, C) = exp([R]_+^2 / 3C).  regrets R and spreads C, the sum of |r|: [..., N].
    """
    high = np.maximum(regrets + 1.0, 0.0) ** 2 / (3.0 * (spreads + 1.0))
    low = np.maximum(regrets - 1.0, 0.0) ** 2 / (3.0 * (spreads + 1.0))
    weights = -np.expm1(low - high) * np.exp(high - high.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / regrets.shape[-1])


class AdaNormalHedge(Learner):
    """AdaNormalHedge; its state also has the sum of |r|."""

    def blank_rows(self) -> dict[str, Any]:
        """Regrets and the sum of their absolute values."""
        return {**super().blank_rows(), "spreads": 0.0}

    def compute_probs(self) -> np.ndarray:
        """See `adanormalhedge_probs`."""
        return adanormalhedge_probs(self.regrets, self.spreads)

    def learn(self, regrets: np.ndarray) -> None:
        """Add a round's regrets [N]."""
        super().learn(regrets)
        self.spreads = self.discount * self.spreads + np.abs(regrets)
