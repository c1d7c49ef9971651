"""EXP3Spec (BanditSpec 2025): exponential weights on losses that stay unbiased though only one is seen.

Axes: N drafters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.base import Choice, Context, at_least
from drafterforge.selectors.learners.hedge import hedge_law


def exp3_law(losses: np.ndarray, rounds: int, scale: float = 1.0) -> np.ndarray:
    """The law after `rounds` rounds of estimated total losses L [..., N], [..., N].

    It is in proportion to exp(-eta L), with eta = sqrt(ln N / (N t)) in round t.
    """
    num_drafters = losses.shape[-1]
    return hedge_law(-losses, scale * math.sqrt(math.log(num_drafters) / (num_drafters * (rounds + 1))))


class Exp3(Bandit):
    """Holds against any sequence of rewards, at the price of exploring for ever."""

    def __init__(self, drafters: Sequence[str], depth: int, *, scale: float = 1.0, **shared: Any) -> None:
        """scale: of the rate eta, ours; the paper's is 1."""
        self.scale = at_least("scale", scale, 0)
        super().__init__(drafters, depth, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Estimated total losses, [N]."""
        return {"losses": 0.0}

    def blank(self) -> dict[str, Any]:
        """Rounds seen."""
        return {"rounds": 0}

    def learn(self, drafter: int, reward: float) -> None:
        """Divide the loss by the probability the drafter was played with, so that its mean is right."""
        self.rounds += 1
        self.losses[drafter] += (1.0 - reward) / self.played[drafter]

    def add_drafter(self, name: str | None = None, cost: float | None = None, levels: int | None = None) -> None:
        """A newcomer starts at the others' mean: with no losses it would look better than all that were tried."""
        mean = self.losses.mean()
        super().add_drafter(name, cost, levels)
        self.losses[-1] = mean

    def select(self, context: Context) -> Choice:
        """A drafter drawn."""
        return self.from_law(exp3_law(self.losses, self.rounds, self.scale), context, "sample")
