"""Accept length of a cycle that any drafter might have run, from what the pool pass measured.

Axes: ... rounds and drafters, K levels.  At level k, gamma is the probability that the drafter's draft meets some
token of the target, and accepted the probability that it meets the token the target emitted.
`plugin` is HedgeSpec's; its mean is exact where acceptance does not depend on which token goes on, at temperature 0
and for K = 1.  `ratio` and `ratio_rb` are exact in the mean for every chain and tree, at a higher variance.
"""

from __future__ import annotations

import numpy as np

ESTIMATORS = ("plugin", "ratio", "ratio_rb")


def expected_length(gamma: np.ndarray, accepted: np.ndarray, estimator: str = "plugin") -> np.ndarray:
    """Tokens a cycle emits, bonus included, in [1, K + 1], [...].  gamma, accepted: [..., K]."""
    if estimator == "ratio_rb":  # the last level is integrated out: it needs only gamma
        return 1.0 + gamma[..., 0] + (gamma[..., 1:] * accepted[..., :-1].cumprod(axis=-1)).sum(axis=-1)
    return 1.0 + (gamma if estimator == "plugin" else accepted).cumprod(axis=-1).sum(axis=-1)


def geometric_length(rate: np.ndarray, depth: int | np.ndarray) -> np.ndarray:
    """Tokens a cycle emits if each of its `depth` levels is accepted at one rate [...], [...]."""
    levels = np.arange(np.max(depth) + 1)
    powers = np.asarray(rate)[..., None] ** levels
    return (powers * (levels <= np.asarray(depth)[..., None])).sum(axis=-1)


def length_loss(length: np.ndarray, depth: int, costs: np.ndarray | None = None) -> np.ndarray:
    """How much a cycle falls short of the best possible, in [0, 1], [..., N].  length: [..., N].

    The best is `depth` + 1 tokens; with costs, seconds per cycle [N], it is that many at the lowest cost.
    """
    share = length / (depth + 1)
    return 1.0 - (share if costs is None else share * (costs.min() / costs))
