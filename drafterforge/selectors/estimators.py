"""Estimates the accept length that each drafter would have had in a cycle from the measurements of the pool pass.

Axes: ... rounds and drafters, K levels.  At level k, gamma is the probability that a token of the target is accepted
from the drafter, and accepted the probability that the emitted token is.
`plugin` is HedgeSpec's; it is unbiased at temperature 0, for K = 1, and where acceptance does not depend on the token
that continues.  `ratio` and `ratio_rb` are unbiased for every chain and tree, with a higher variance.
"""

from __future__ import annotations

import numpy as np

ESTIMATORS = ("plugin", "ratio", "ratio_rb")


def expected_length(gamma: np.ndarray, accepted: np.ndarray, estimator: str = "plugin") -> np.ndarray:
    """Tokens that a cycle emits, bonus included, in [1, K + 1], [...].  gamma, accepted: [..., K]."""
    if estimator == "ratio_rb":  # the last level is integrated out, so it needs only gamma
        return 1.0 + gamma[..., 0] + (gamma[..., 1:] * accepted[..., :-1].cumprod(axis=-1)).sum(axis=-1)
    return 1.0 + (gamma if estimator == "plugin" else accepted).cumprod(axis=-1).sum(axis=-1)


def geometric_length(rate: np.ndarray, depth: int | np.ndarray) -> np.ndarray:
    """Tokens that a cycle emits if each of its `depth` levels is accepted with probability `rate` [...], [...]."""
    levels = np.arange(np.max(depth) + 1)
    powers = np.asarray(rate)[..., None] ** levels
    return (powers * (levels <= np.asarray(depth)[..., None])).sum(axis=-1)


def length_loss(length: np.ndarray, depth: int, costs: np.ndarray | None = None) -> np.ndarray:
    """Loss of a cycle, in [0, 1], [..., N]: 1 less its tokens as a share of the best possible.  length: [..., N].

    The best is `depth` + 1 tokens; with costs, seconds per cycle [N], tokens per second count, and the best is as many
    tokens at the lowest cost.
    """
    share = length / (depth + 1)
    return 1.0 - (share if costs is None else share * (costs.min() / costs))
