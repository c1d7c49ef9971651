"""Squint (Koolen, van Erven 2015): a prior over learning rates; second-order bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from drafterforge.selectors.base import one_of
from drafterforge.selectors.learners.base import Learner

PRIORS = ("uniform", "improper")
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(48)  # on [-1, 1]
DROP = 40.0  # the integrand is neglected where its exponent is this far below the maximum


def squint_probs(regrets: np.ndarray, squares: np.ndarray, prior: str = "uniform") -> np.ndarray:
    """Probabilities in proportion to the integral of h(eta) exp(eta R - eta^2 V) over eta in [0, 1/2], [..., N].

    h is eta for the uniform prior, 1 for the improper one in 1/eta.  regrets R and squares V, the sum of r^2: [..., N].
    """
    # Quadrature over the part of [0, 1/2] where the exponent is at most DROP below its peak.
    peak = np.clip(np.divide(regrets, 2.0 * squares, out=np.where(regrets > 0, 0.5, 0.0), where=squares > 0), 0.0, 0.5)
    slope = np.abs(regrets - 2.0 * squares * peak)
    reach = 2.0 * DROP / np.maximum(slope + np.sqrt(slope**2 + 4.0 * DROP * squares), 4.0 * DROP)
    low, high = np.maximum(peak - reach, 0.0), np.minimum(peak + reach, 0.5)
    half = (high - low)[..., None] / 2.0
    eta = low[..., None] + half * (NODES + 1.0)  # [..., N, nodes]
    exponent = eta * (regrets[..., None] - eta * squares[..., None])
    exponent -= exponent.max(axis=(-2, -1), keepdims=True)
    values = half * NODE_WEIGHTS * np.exp(exponent)
    weights = ((eta * values) if prior == "uniform" else values).sum(axis=-1)
    return weights / weights.sum(axis=-1, keepdims=True)


class Squint(Learner):
    """Squint; its state also has the sum of r^2."""

    def __init__(self, num_drafters: int, *, prior: str = "uniform", **shared: Any) -> None:
        """prior: of the learning rate, `uniform` on [0, 1/2] or `improper`, in proportion to its inverse."""
        self.prior = one_of("prior", prior, PRIORS)
        super().__init__(num_drafters, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Regrets and the sum of their squares."""
        return {**super().blank_rows(), "squares": 0.0}

    def compute_probs(self) -> np.ndarray:
        """See `squint_probs`."""
        return squint_probs(self.regrets, self.squares, self.prior)

    def learn(self, regrets: np.ndarray) -> None:
        """Add a round's regrets [N]."""
        super().learn(regrets)
        self.squares = self.discount * self.squares + regrets**2
