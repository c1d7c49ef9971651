"""Hedge (Freund, Schapire 1997): exponential weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from drafterforge.selectors.base import at_least, whole_number
from drafterforge.selectors.learners.base import Learner


def hedge_probs(regrets: np.ndarray, eta: float) -> np.ndarray:
    """Probabilities in proportion to exp(eta R), [..., N].  regrets R, or negative total losses: [..., N]."""
    weights = np.exp(eta * (regrets - regrets.max(axis=-1, keepdims=True)))
    return weights / weights.sum(axis=-1, keepdims=True)


def hedge_rate(num_drafters: int, rounds: int) -> float:
    """The learning rate with the smallest bound on the regret after `rounds` rounds."""
    return math.sqrt(8 * math.log(num_drafters) / max(rounds, 1))


class Hedge(Learner):
    """Hedge with the rate `eta`, else the best rate for `horizon` rounds, else for the rounds so far."""

    def __init__(
        self, num_drafters: int, *, eta: float | None = None, horizon: int | None = None, **shared: Any
    ) -> None:
        self.eta = None if eta is None else at_least("eta", eta, 0)
        self.horizon = None if horizon is None else whole_number("horizon", horizon, 1)
        super().__init__(num_drafters, **shared)

    def compute_probs(self) -> np.ndarray:
        """See `hedge_probs`."""
        eta = hedge_rate(self.num_drafters, self.horizon or self.rounds) if self.eta is None else self.eta
        return hedge_probs(self.regrets, eta)
