"""Fits the seconds of a latency profile to measured cycles.  Axes: M cycles, F terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from drafterforge.schedulers.latency import Cycles, LatencyProfile, knot_terms, terms

TRIM = 6.0  # residuals beyond so many median absolute ones are interruptions, not costs
ROUNDS = 4
ENOUGH = 2.0  # cycles at a knot, those between two knots shared among them, below which it cannot be priced


def fit_terms(columns: Mapping[str, np.ndarray], seconds: np.ndarray, rising: Sequence[str] = ()) -> dict[str, float]:
    """Non-negative seconds of each term, [M] each, that explain the seconds [M] measured.

    Least squares of relative errors, so that cheap cycles count as much as dear ones; outliers are left out.
    rising: terms of knots, whose seconds do not fall from one to the next; their cycles are kept where they are few.
    """
    matrix = np.stack([np.broadcast_to(column, seconds.shape) for column in columns.values()], axis=1).astype(float)
    places = [list(columns).index(name) for name in rising]
    sums = matrix.copy()  # of a knot and those after it: their seconds are increments
    sums[:, places] = matrix[:, places[::-1]].cumsum(axis=1)[:, ::-1]
    weights = 1.0 / np.maximum(seconds, np.median(seconds) / 10)
    kept = np.ones(len(seconds), dtype=bool)
    for _ in range(ROUNDS):
        found, _ = nnls(sums[kept] * weights[kept, None], seconds[kept] * weights[kept])
        residual = np.abs(seconds - sums @ found) * weights
        kept = residual <= TRIM * max(np.median(residual), 1e-9)
        for place in places:
            if matrix[kept, place].sum() < ENOUGH:
                kept |= matrix[:, place] > 0
    found[places] = found[places].cumsum()
    return {name: float(value) for name, value in zip(columns, found, strict=True)}


def fit_step(step: str, cycles: Cycles, seconds: np.ndarray, profile: LatencyProfile) -> dict[str, float]:
    """Seconds of a step's terms, fitted to seconds [M]; knots with too few cycles lie between their neighbours.

    profile: names the knots.  The outermost ones must be priced: see `unpriced`.
    """
    known = {"nodes": profile.nodes, "top_ks": profile.top_ks}
    lacking = _lacking(step, cycles, profile)
    own = {key: tuple(knot for knot in knots if knot not in lacking) for key, knots in known.items()}
    names = knot_terms(step, **own)
    found = fit_terms(terms(step, cycles, **own), seconds, list(names.values()))
    missing = {name: knot for knot, name in knot_terms(step, **known).items() if knot in lacking}
    at = [found[name] for name in names.values()]
    found |= {name: float(np.interp(knot, list(names), at)) for name, knot in missing.items()}
    return {name: found[name] for name in terms(step, cycles, **known)}


def unpriced(step: str, cycles: Cycles, profile: LatencyProfile) -> str:
    """The outermost knot of a step that too few cycles reached, in words; empty if there is none."""
    names = knot_terms(step, profile.nodes, profile.top_ks)
    lacking = _lacking(step, cycles, profile)
    return next((names[knot] for knot in (min(names), max(names)) if knot in lacking), "") if names else ""


def _lacking(step: str, cycles: Cycles, profile: LatencyProfile) -> set[int]:
    """Knots with fewer than `ENOUGH` cycles; none of widths where no tree has a second level."""
    columns = terms(step, cycles, profile.nodes, profile.top_ks)
    names = knot_terms(step, profile.nodes, profile.top_ks)
    if step == "draft" and profile.depth < 2:
        return set()
    return {knot for knot, name in names.items() if columns[name].sum() < ENOUGH}


def median_error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Median of |predicted / measured - 1|."""
    return float(np.median(np.abs(predicted / measured - 1.0)))
