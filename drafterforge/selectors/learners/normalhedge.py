"""NormalHedge (Chaudhuri, Freund, Hsu 2009): no learning rate."""

from __future__ import annotations

import math

import numpy as np

from drafterforge.selectors.learners.base import Learner

MAX_STEPS = 60
TOLERANCE = 1e-9  # relative; a Newton step of this size leaves an error of its square


def normalhedge_probs(regrets: np.ndarray) -> tuple[np.ndarray, float]:
    """Probabilities [N] and the scale c; uniform and 0 if no regret is positive.  regrets: [N].

    c solves mean exp([R]_+^2 / 2c) = e.  With u = [R]_+ / max [R]_+ and s = max [R]_+^2 / 2c this is
    ln mean exp(s u^2) = 1, increasing and convex in s, so Newton's method from above converges monotonically.  The
    root lies between 1 and ln(N (e - 1) + 1), its value if only one regret is positive.
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


def normalhedge_rows(regrets: np.ndarray) -> np.ndarray:
    """Probabilities of many rows at once, [..., N]; `normalhedge_probs` computes one.  regrets: [..., N]."""
    num_drafters = regrets.shape[-1]
    positive = np.maximum(regrets, 0.0)
    top = positive.max(axis=-1, keepdims=True)
    some = top > 0
    share = positive / np.where(some, top, 1.0)
    square = share * share
    s = np.full(top.shape, math.log(num_drafters * (math.e - 1) + 1))
    for _ in range(MAX_STEPS):
        terms = np.exp(s * (square - 1.0))
        total = terms.sum(axis=-1, keepdims=True)
        slope = np.where(some, (terms * square).sum(axis=-1, keepdims=True), 1.0)
        step = (np.log(total / num_drafters) + s - 1.0) * total / slope
        s = np.maximum(s - step, 1.0)
        if (np.abs(step) <= TOLERANCE * s)[some].all():
            break
    weights = np.where(some, share * np.exp(s * (square - 1.0)), 1.0)
    return weights / weights.sum(axis=-1, keepdims=True)


class NormalHedge(Learner):
    """NormalHedge; drafters without positive regret have probability 0, but are still evaluated."""

    def compute_probs(self) -> np.ndarray:
        """See `normalhedge_probs`."""
        return normalhedge_probs(self.regrets)[0]
