"""The best choices in hindsight.  Axes: T rounds, N drafters."""

from __future__ import annotations

import numpy as np


def best_in_hindsight(losses: np.ndarray) -> int:
    """The drafter with the smallest total loss, the first of equal ones.  losses: [T, N]."""
    return int(losses.sum(axis=0).argmin())


def signal_strength(rewards: np.ndarray, best: int) -> np.ndarray:
    """MetaSD's R of each drafter: gap^2 / max(variance, variance of the best), [N].  rewards: [N, T].

    gap: between the mean rewards of the drafter and of the best one.  The larger R, the fewer rounds a bandit needs.
    """
    gaps, variances = rewards[best].mean() - rewards.mean(axis=1), rewards.var(axis=1)
    spread = np.maximum(variances, variances[best])
    return np.divide(gaps**2, spread, out=np.where(gaps == 0, 0.0, np.inf), where=spread > 0)


def regret(losses: np.ndarray, drafters: np.ndarray) -> np.ndarray:
    """Cumulative regret of the selected `drafters` [T] against the best one in hindsight, [T].  losses: [T, N]."""
    selected = losses[np.arange(len(losses)), drafters]
    return (selected - losses[:, best_in_hindsight(losses)]).cumsum()
