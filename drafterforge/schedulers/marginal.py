"""The `marginal` policy: trees grow as long as the next level and the next node are worth their seconds.

A drafter's log-probabilities estimate how likely each node is to be accepted.  A level is drafted if its parents are
likely enough; a node is verified if its expected tokens outweigh its seconds times a rate of tokens per second.  Replay
fits these two numbers; no network runs.
Axes: B rows, S candidates of a level, P candidates of all levels, V sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drafterforge.errors import ConfigError, quote, shorten
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.schedulers.actions import MOST_VALUES, ActionGrid
from drafterforge.schedulers.growing import GrowingPolicy
from drafterforge.schedulers.latency import Cycles, LatencyProfile
from drafterforge.schedulers.spec import PolicySpec

FINE, COARSE = 32, 64  # sizes up to which steps are 1, and 2; beyond they are 4


class MarginalPolicy(GrowingPolicy):
    """Ends a tree where it no longer pays.

    numbers of the spec: `reach`, the least probability that some parent of a level is accepted, and `rate`, the tokens
    that a second of verification has to add.
    """

    def __init__(self, spec: PolicySpec, seconds: Tensor) -> None:
        """seconds: of verification for each size, [V]."""
        super().__init__(spec)
        if seconds.shape != (len(self.sizes),) or not bool(seconds.isfinite().all()):
            raise ValueError(f"wanted finite seconds of {len(self.sizes)} sizes, got {list(seconds.shape)}")
        if set(spec.numbers) != {"reach", "rate"} or min(spec.numbers.values()) < 0:
            raise ValueError(f"wanted numbers reach and rate >= 0, got {shorten(spec.numbers)}")
        self.seconds, self.reach = seconds.double(), spec.numbers["reach"]
        self.prices = spec.numbers["rate"] * self.seconds  # in tokens

    def on(self, device: torch.device) -> MarginalPolicy:
        """See `GrowingPolicy`."""
        twin = super().on(device)
        twin.prices = self.prices.to(device)
        return twin

    def go_on(self, level: int, scores: Tensor, lengths: Tensor) -> Tensor:
        """See `GrowingPolicy`."""
        width = min(self.spec.top_k, scores.shape[1])
        return kernels_of(scores).reach(scores, width) >= self.reach

    def nodes(self, depths: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """See `GrowingPolicy`; 2 nodes at least."""
        return kernels_of(scores).worth(scores, self.count, self.prices)


def require_scored(grid: ActionGrid, score_top_k: int) -> None:
    """ConfigError if a grid lacks the width of the trees whose scores are recorded."""
    if score_top_k not in grid.top_ks:
        raise ConfigError(
            f"traces record the scores of top_k={score_top_k}, which the grid {quote(grid.name)} lacks; "
            f"type traces.score_top_k={grid.top_ks[0]} traces.name=OTHER"
        )


def marginal_grid(grid: ActionGrid, score_top_k: int, max_depth: int) -> ActionGrid:
    """The shapes that a `MarginalPolicy` can choose: one width, every depth, sizes in finer steps than the grid's."""
    require_scored(grid, score_top_k)
    largest, depth = max(grid.num_tokens), min(max_depth, max(grid.depths))
    steps = [*range(2, FINE + 1), *range(FINE + 2, COARSE + 1, 2), *range(COARSE + 4, largest + 1, 4)]
    sizes = tuple(count for count in steps if count <= largest)
    return ActionGrid(f"{grid.name}, marginal", sizes[: MOST_VALUES - 1], tuple(range(1, depth + 1)), (score_top_k,))


def verify_s(profile: LatencyProfile, sizes: Sequence[int], length: float) -> np.ndarray:
    """Seconds of verify and host for trees of some sizes below a root at position `length`, [V]."""
    count = np.array(sizes)
    cycles = Cycles(np.ones_like(count), np.ones_like(count), count, np.full(len(count), length), np.ones_like(count))
    return profile.step_s("verify", cycles) + profile.step_s("host", cycles)
