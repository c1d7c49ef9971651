"""Probabilities over the drafters of a pool.  Axes: N drafters."""

from __future__ import annotations

import numpy as np

from drafterforge.errors import DrafterforgeError

SLACK = 1e-3  # rounding error of a measured probability


def restricted(weights: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """`weights` [N] of the `allowed` drafters [N], normalised; uniform if all of them are 0."""
    weights = np.where(allowed, weights, 0.0)
    total = weights.sum()
    return weights / total if total > 0 else allowed / allowed.sum()


def draw(probs: np.ndarray, rng: np.random.Generator) -> int:
    """A drafter drawn from `probs` [N]; never one with probability 0."""
    ends = probs.cumsum()
    return int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))


def measured(values: np.ndarray, what: str) -> np.ndarray:
    """Measured probabilities, clipped to [0, 1] against rounding errors; NaN stays."""
    values = np.asarray(values, dtype=np.float64)
    if ((values < -SLACK) | (values > 1 + SLACK)).any():
        raise DrafterforgeError(f"{what} must lie in [0, 1], got {values.min():g} .. {values.max():g}")
    return values.clip(0.0, 1.0)


def one_hot(drafter: int, num_drafters: int) -> np.ndarray:
    """Probability 1 for `drafter`, [N]."""
    probs = np.zeros(num_drafters)
    probs[drafter] = 1.0
    return probs


def best_of(scores: np.ndarray, allowed: np.ndarray) -> int:
    """The allowed drafter with the highest score [N], the first of equal ones."""
    drafters = allowed.nonzero()[0]
    return int(drafters[scores[drafters].argmax()])
