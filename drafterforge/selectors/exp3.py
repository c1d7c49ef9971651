"""EXP3Spec (BanditSpec 2025): exponential weights on unbiased estimates of the losses of all drafters.

Axes: N drafters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.base import Choice, Context, at_least
from drafterforge.selectors.learners.hedge import hedge_probs


def exp3_probs(losses: np.ndarray, rounds: int, scale: float = 1.0) -> np.ndarray:
    """Probabilities after `rounds` rounds with estimated total losses L [..., N], [..., N].

    In proportion to exp(-eta L), with eta = sqrt(ln N / (N t)) in round t.
    """
    num_drafters = losses.shape[-1]
    return hedge_probs(-losses, scale * math.sqrt(math.log(num_drafters) / (num_drafters * (rounds + 1))))


class Exp3(Bandit):
    """EXP3: a regret bound for any sequence of rewards, but it never stops exploring."""

    def __init__(self, drafters: Sequence[str], depth: int, *, scale: float = 1.0, **shared: Any) -> None:
        """scale: factor of the rate eta (ours); 1 in the paper."""
        self.scale = at_least("scale", scale, 0)
        super().__init__(drafters, depth, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Estimated total losses, [N]."""
        return {"losses": 0.0}

    def blank(self) -> dict[str, Any]:
        """Number of rounds."""
        return {"rounds": 0}

    def learn(self, drafter: int, reward: float) -> None:
        """Divide the loss by the drafter's probability, so its estimate is unbiased."""
        self.rounds += 1
        self.losses[drafter] += (1.0 - reward) / self.played_probs[drafter]

    def add_drafter(self, name: str | None = None, cost: float | None = None, levels: int | None = None) -> None:
        """Start a new drafter at the others' mean; without losses it would look better than all of them."""
        mean = self.losses.mean()
        super().add_drafter(name, cost, levels)
        self.losses[-1] = mean

    def select(self, context: Context) -> Choice:
        """A drafter drawn from `exp3_probs`."""
        return self.from_probs(exp3_probs(self.losses, self.rounds, self.scale), context, "sample")
