"""The best choices once everything is known.  Axes: T rounds, N drafters."""

from __future__ import annotations

import numpy as np


def best_in_hindsight(losses: np.ndarray) -> int:
    """The drafter of the smallest total loss [T, N]; of equal ones the first."""
    return int(losses.sum(axis=0).argmin())


def best_per_round(losses: np.ndarray) -> np.ndarray:
    """The drafter of the smallest loss in every round of [T, N], [T]."""
    return losses.argmin(axis=1)


def regret(losses: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Loss of the drafters `chosen` [T] above that of the best one in hindsight, added up, [T].  losses: [T, N]."""
    taken = losses[np.arange(len(losses)), chosen]
    return (taken - losses[:, best_in_hindsight(losses)]).cumsum()
