"""Intervals of ratios between methods that decoded the same prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 2000


def bootstrap_ratio(pairs: Sequence[tuple[float, float, float, float]], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the ratio of two totals' rates, prompts resampled in pairs.

    pairs: for every prompt tokens and seconds of the one method, then tokens and seconds of the other.
    """
    table = np.asarray(pairs, dtype=float)
    picked = np.random.default_rng(seed).integers(0, len(table), size=(DRAWS, len(table)))
    tokens, seconds, other_tokens, other_seconds = table[picked].sum(axis=1).T
    low, high = np.percentile(tokens / seconds * other_seconds / other_tokens, [2.5, 97.5])
    return float(low), float(high)
