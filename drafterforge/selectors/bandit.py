"""What bandits share: a reward in [0, 1] of the drafter that was played, and of no other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors.base import Feedback, Needs, Selector, one_of
from drafterforge.selectors.estimators import geometric_length, length_loss
from drafterforge.selectors.laws import measured

REWARDS = ("efficiency", "divergence")


class Bandit(Selector):
    """Learns from the cycles it ran."""

    def __init__(self, drafters: Sequence[str], depth: int, *, reward: str = "efficiency", **shared: Any) -> None:
        """reward: `efficiency`, accepted tokens over `depth`, or `divergence`, MetaSD's mean of 1 - TV."""
        super().__init__(drafters, depth, **shared)
        self.reward = one_of("reward", reward, REWARDS)
        self.needs = Needs(divergence=reward == "divergence")
        self.reset()

    def observe(self, feedback: Feedback) -> None:
        """Learn from the cycle, unless it drafted nothing."""
        if feedback.depth > 0:
            self.learn(feedback.drafter, self.reward_of(feedback))

    @abstractmethod
    def learn(self, drafter: int, reward: float) -> None:
        """A cycle of `drafter` brought `reward`, in [0, 1]."""

    def reward_of(self, feedback: Feedback) -> float:
        """The reward of a cycle; with costs, its pace as a share of the best possible.

        A drafter of fewer levels than the deepest has that much less to win.
        """
        if self.reward == "divergence":
            if feedback.divergence is None or feedback.divergence != feedback.divergence:
                raise DrafterforgeError(f"{self.name} needs a divergence in every cycle, got {feedback.divergence!r}")
            share = float(measured(feedback.divergence, "divergence"))
        else:
            if not 1 <= feedback.accept_length <= feedback.depth + 1:
                raise DrafterforgeError(
                    f"a cycle of depth {feedback.depth} cannot emit {feedback.accept_length} tokens: 1 .. depth + 1"
                )
            share = (feedback.accept_length - 1) / self.depth
        if self.costs is None:
            return share
        length = geometric_length(share, self.depth) if self.reward == "divergence" else 1.0 + self.depth * share
        lengths = np.full(self.num_drafters, length)
        return float(1.0 - length_loss(lengths, self.depth, self.costs)[feedback.drafter])
