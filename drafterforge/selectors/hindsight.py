"""The best choices in hindsight.  Axes: T rounds, N drafters."""

from __future__ import annotations

import numpy as np


def best_in_hindsight(losses: np.ndarray) -> int:
    """The drafter with the smallest total loss, the first of equal ones.  losses: [T, N]."""
    return int(losses.sum(axis=0).argmin())


def best_per_round(losses: np.ndarray) -> np.ndarray:
    """The drafter with the smallest loss in every round, [T].  losses: [T, N]."""
    return losses.argmin(axis=1)


def regret(losses: np.ndarray, drafters: np.ndarray) -> np.ndarray:
    """Cumulative regret of the selected `drafters` [T] against the best one in hindsight, [T].  losses: [T, N]."""
    selected = losses[np.arange(len(losses)), drafters]
    return (selected - losses[:, best_in_hindsight(losses)]).cumsum()
