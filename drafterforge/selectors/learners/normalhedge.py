"""NormalHedge (Chaudhuri, Freund, Hsu 2009): no rate to tune."""

from __future__ import annotations

import math

import numpy as np

from drafterforge.selectors.learners.base import Learner

MAX_STEPS = 60
TOLERANCE = 1e-9  # a Newton step this small leaves an error of its square


def normalhedge_law(regrets: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights [N] and the scale c; uniform and 0 where no regret is positive.  regrets: [N].

    c solves mean exp([R]_+^2 / 2c) = e.  With u = [R]_+ / max [R]_+ and s = max [R]_+^2 / 2c this is
    ln mean exp(s u^2) = 1, increasing and convex in s: Newton's method from above the root never passes it, and the
    root lies between 1 and ln(N (e - 1) + 1), where it is when one drafter leads alone.
    """
    num_drafters = len(regrets)
    top = float(regrets.max())
    if top <= 0:
        return np.full(num_drafters, 1.0 / num_drafters), 0.0
    share = np.maximum(regrets, 0.0) / top
    square = share * share
    below = square - 1.0
    ones = np.ones(num_drafters)
    s = math.log(num_drafters * (math.e - 1) + 1)
    for _ in range(MAX_STEPS):
        terms = np.exp(s * below)
        total = float(terms @ ones)
        step = (math.log(total / num_drafters) + s - 1.0) * total / float(terms @ square)
        s = max(s - step, 1.0)
        if abs(step) <= TOLERANCE * s:
            break
    weights = share * np.exp(s * below)
    return weights / (weights @ ones), top * top / (2.0 * s)


class NormalHedge(Learner):
    """Drafters that the law played beat have weight zero, and are measured all the same."""

    def law(self) -> np.ndarray:
        """Weights, [N]."""
        return normalhedge_law(self.regrets)[0]
