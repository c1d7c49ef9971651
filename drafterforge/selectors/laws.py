"""Laws over the pool: restricted to some drafters, and drawn from.  Axes: N drafters."""

from __future__ import annotations

import numpy as np

from drafterforge.errors import DrafterforgeError

SLACK = 1e-3  # rounding that a measured probability may carry


def restricted(weights: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """`weights` [N] of the `allowed` drafters [N] alone, summing to one; uniform where they have none."""
    kept = np.where(allowed, weights, 0.0)
    total = kept.sum()
    return kept / total if total > 0 else allowed / allowed.sum()


def draw(probs: np.ndarray, rng: np.random.Generator) -> int:
    """A drafter drawn from `probs` [N]; never one of probability zero."""
    ends = probs.cumsum()
    return int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))


def measured(values: np.ndarray, what: str) -> np.ndarray:
    """Probabilities that were measured, cut to [0, 1] if rounding took them out of it; NaN stays."""
    values = np.asarray(values, dtype=np.float64)
    if ((values < -SLACK) | (values > 1 + SLACK)).any():
        raise DrafterforgeError(f"{what} must lie in [0, 1], got {values.min():g} .. {values.max():g}")
    return values.clip(0.0, 1.0)


def one_hot(drafter: int, num_drafters: int) -> np.ndarray:
    """The law that always picks `drafter`, [N]."""
    probs = np.zeros(num_drafters)
    probs[drafter] = 1.0
    return probs


def best_of(scores: np.ndarray, allowed: np.ndarray) -> int:
    """The allowed drafter of the highest score [N]; of equal ones the first."""
    drafters = allowed.nonzero()[0]
    return int(drafters[scores[drafters].argmax()])
