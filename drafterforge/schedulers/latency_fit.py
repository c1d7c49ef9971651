"""Fits the seconds of a latency profile to measured cycles.  Axes: M cycles, F terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from drafterforge.schedulers.latency import Cycles, LatencyProfile, knot_terms, terms

TRIM = 6.0  # residuals above this multiple of their median are interruptions, not costs
ROUNDS = 4
MIN_CYCLES = 2.0  # interpolation weight of cycles that a knot needs to be fitted


def fit_terms(columns: Mapping[str, np.ndarray], seconds: np.ndarray, rising: Sequence[str] = ()) -> dict[str, float]:
    """Non-negative seconds of each term that fit the measured seconds [M].  columns: quantities of the terms, [M].

    Least squares of relative errors, so cheap cycles count as much as expensive ones; outliers are dropped.
    rising: terms of knots, whose seconds must not fall from one to the next; cycles of rare knots are never dropped.
    """
    matrix = np.stack([np.broadcast_to(column, seconds.shape) for column in columns.values()], axis=1).astype(float)
    knots = [list(columns).index(name) for name in rising]
    sums = matrix.copy()  # of a knot's column and those after it, whose coefficients are the increments
    sums[:, knots] = matrix[:, knots[::-1]].cumsum(axis=1)[:, ::-1]
    weights = 1.0 / np.maximum(seconds, np.median(seconds) / 10)
    inliers = np.ones(len(seconds), dtype=bool)
    for _ in range(ROUNDS):
        fit, _ = nnls(sums[inliers] * weights[inliers, None], seconds[inliers] * weights[inliers])
        residual = np.abs(seconds - sums @ fit) * weights
        inliers = residual <= TRIM * max(np.median(residual), 1e-9)
        for knot in knots:
            if matrix[inliers, knot].sum() < MIN_CYCLES:
                inliers |= matrix[:, knot] > 0
    fit[knots] = fit[knots].cumsum()
    return {name: float(value) for name, value in zip(columns, fit, strict=True)}


def fit_step(step: str, cycles: Cycles, seconds: np.ndarray, profile: LatencyProfile) -> dict[str, float]:
    """Seconds of a step's terms, fitted to seconds [M]; knots with too few cycles are interpolated.

    profile: has the knots.  The outermost ones need enough cycles, see `unpriced`.
    """
    all_knots = {"nodes": profile.nodes, "top_ks": profile.top_ks}
    rare = _rare_knots(step, cycles, profile)
    knots = {key: tuple(knot for knot in values if knot not in rare) for key, values in all_knots.items()}
    names = knot_terms(step, **knots)
    fit = fit_terms(terms(step, cycles, **knots), seconds, list(names.values()))
    missing = {name: knot for knot, name in knot_terms(step, **all_knots).items() if knot in rare}
    fitted = [fit[name] for name in names.values()]
    fit |= {name: float(np.interp(knot, list(names), fitted)) for name, knot in missing.items()}
    return {name: fit[name] for name in terms(step, cycles, **all_knots)}


def unpriced(step: str, cycles: Cycles, profile: LatencyProfile) -> str:
    """The term of an outermost knot of a step with too few cycles; empty if there is none."""
    names = knot_terms(step, profile.nodes, profile.top_ks)
    rare = _rare_knots(step, cycles, profile)
    return next((names[knot] for knot in (min(names), max(names)) if knot in rare), "") if names else ""


def _rare_knots(step: str, cycles: Cycles, profile: LatencyProfile) -> set[int]:
    """Knots with fewer than `MIN_CYCLES` cycles; for draft none, if no tree has a second level."""
    columns = terms(step, cycles, profile.nodes, profile.top_ks)
    names = knot_terms(step, profile.nodes, profile.top_ks)
    if step == "draft" and profile.depth < 2:
        return set()
    return {knot for knot, name in names.items() if columns[name].sum() < MIN_CYCLES}


def median_error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Median of |predicted / measured - 1|."""
    return float(np.median(np.abs(predicted / measured - 1.0)))
