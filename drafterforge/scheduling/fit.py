"""Fits the seconds of a latency profile to measured cycles.  Axes: M cycles, F terms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.optimize import nnls

TRIM = 6.0  # residuals beyond so many median absolute ones are interruptions, not costs
ROUNDS = 4


def fit_terms(columns: Mapping[str, np.ndarray], seconds: np.ndarray) -> dict[str, float]:
    """Non-negative seconds of each term, [M] each, that explain the seconds [M] measured.

    Least squares of relative errors, so that cheap cycles count as much as dear ones; outliers are left out.
    """
    matrix = np.stack([np.broadcast_to(column, seconds.shape) for column in columns.values()], axis=1)
    weights = 1.0 / np.maximum(seconds, np.median(seconds) / 10)
    kept = np.ones(len(seconds), dtype=bool)
    for _ in range(ROUNDS):
        found, _ = nnls(matrix[kept] * weights[kept, None], seconds[kept] * weights[kept])
        residual = np.abs(seconds - matrix @ found) * weights
        kept = residual <= TRIM * max(np.median(residual), 1e-9)
    return {name: float(value) for name, value in zip(columns, found, strict=True)}


def median_error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Median of |predicted / measured - 1|."""
    return float(np.median(np.abs(predicted / measured - 1.0)))
