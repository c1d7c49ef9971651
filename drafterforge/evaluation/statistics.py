"""Ratios between two methods that decoded the same prompts, their intervals, and correction of p values.

A pair is a prompt's tokens and seconds of the first method, then of the second.  The ratio of totals compares the time
for all prompts, so that long answers weigh more; the macro ratio weighs prompts alike.
Axes: Q prompts, B draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drafterforge.config.evaluation import MIN_VERDICT
from drafterforge.errors import DrafterforgeError

DRAWS = 2000
Pairs = Sequence[tuple[float, float, float, float]]


def totals_ratio(pairs: Pairs) -> float:
    """Tokens per second of the first method over those of the second, on all prompts together."""
    return float(_of_totals(_table(pairs)))


def macro_ratio(pairs: Pairs) -> float:
    """Mean over prompts of the ratio of the two rates."""
    return float(_of_prompts(_table(pairs)))


def bootstrap_ratio(pairs: Pairs, seed: int = 0) -> tuple[float, float]:
    """95 % interval of `totals_ratio`, prompts resampled in pairs."""
    return _interval(_of_totals(_resampled(pairs, seed)))


def bootstrap_macro_ratio(pairs: Pairs, seed: int = 0) -> tuple[float, float]:
    """95 % interval of `macro_ratio`, prompts resampled in pairs."""
    return _interval(_of_prompts(_resampled(pairs, seed)))


def interval_of(bootstrap: Callable[[Pairs], tuple[float, float]], pairs: Pairs) -> list[float] | None:
    """The rounded interval of a ratio; None for fewer pairs than `MIN_VERDICT`, whose interval is their range."""
    return [round(bound, 4) for bound in bootstrap(pairs)] if len(pairs) >= MIN_VERDICT else None


def bootstrap_mean_ratio(by_seed: Sequence[Pairs], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean over training seeds of `totals_ratio`; seeds and prompts are resampled.

    by_seed: pairs of the same prompts for each training seed.
    """
    tables, rng = np.stack([_table(pairs) for pairs in by_seed]), np.random.default_rng(seed)
    num_seeds, num_prompts = tables.shape[:2]
    prompts = rng.integers(num_prompts, size=(DRAWS, num_prompts))
    seeds = rng.integers(num_seeds, size=(DRAWS, num_seeds))
    ratios = _of_totals(tables[:, prompts])  # [seeds, B]
    return _interval(ratios[seeds, np.arange(DRAWS)[:, None]].mean(axis=1))


def mean_and_spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation, and the values themselves; one value has no deviation."""
    deviation = round(float(np.std(values, ddof=1)), 4) if len(values) > 1 else None
    return {"mean": round(float(np.mean(values)), 4), "sd": deviation, "values": [round(float(v), 4) for v in values]}


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """P values corrected for multiple tests; None stays None and is not counted.

    Holm 1979: the i-th smallest of m values times m + 1 - i, at most 1 and at least its predecessor.
    """
    if invalid := [p for p in ps if p is not None and not 0 <= p <= 1]:
        raise DrafterforgeError(f"a p value lies in [0, 1], got {invalid[0]}")
    tests = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, index) in enumerate(tests):
        least = max(least, min(1.0, (len(tests) - rank) * p))
        corrected[index] = least
    return corrected


def _table(pairs: Pairs) -> np.ndarray:
    """Pairs as [Q, 4]."""
    table = np.asarray(pairs, dtype=float)
    if table.ndim != 2 or table.shape[1] != 4 or not len(table):
        raise DrafterforgeError(f"a ratio needs tokens and seconds of both methods for each prompt, got {table.shape}")
    return table


def _resampled(pairs: Pairs, seed: int) -> np.ndarray:
    """Draws of as many prompts with replacement, [B, Q, 4]."""
    table = _table(pairs)
    return table[np.random.default_rng(seed).integers(0, len(table), size=(DRAWS, len(table)))]


def _of_totals(table: np.ndarray) -> np.ndarray:
    """Of [..., Q, 4]."""
    tokens, seconds, other_tokens, other_seconds = np.moveaxis(table.sum(axis=-2), -1, 0)
    return tokens / seconds * other_seconds / other_tokens


def _of_prompts(table: np.ndarray) -> np.ndarray:
    """Of [..., Q, 4]."""
    tokens, seconds, other_tokens, other_seconds = np.moveaxis(table, -1, 0)
    return (tokens / seconds * other_seconds / other_tokens).mean(axis=-1)


def _interval(ratios: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)
