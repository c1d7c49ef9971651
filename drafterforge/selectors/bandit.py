"""Bandits: selectors that see a reward in [0, 1] of the selected drafter only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors.base import Feedback, Needs, Selector, one_of
from drafterforge.selectors.estimators import geometric_length, length_loss
from drafterforge.selectors.probabilities import measured

REWARDS = ("efficiency", "coverage")


class Bandit(Selector):
    """A selector that learns from the reward of each cycle."""

    def __init__(self, drafters: Sequence[str], depth: int, *, reward: str = "efficiency", **shared: Any) -> None:
        """reward: `efficiency`, accepted tokens over `depth` (MetaSD's BE), or `coverage`, see `metasd`."""
        super().__init__(drafters, depth, **shared)
        self.reward = one_of("reward", reward, REWARDS)
        self.needs = Needs(coverage=reward == "coverage")
        self.reset()

    def observe(self, feedback: Feedback) -> None:
        """Learn from the reward of a cycle that drafted."""
        if feedback.depth > 0:
            self.learn(feedback.drafter, self.reward_of(feedback))

    @abstractmethod
    def learn(self, drafter: int, reward: float) -> None:
        """Learn from a cycle of `drafter` with `reward`, in [0, 1]."""

    def reward_of(self, feedback: Feedback) -> float:
        """The reward of a cycle; with costs, its tokens per second as a share of the best possible.

        Accepted tokens are divided by the levels of the deepest drafter, so a shallower drafter cannot reach 1.
        """
        if self.reward == "coverage":
            if feedback.coverage is None or feedback.coverage != feedback.coverage:
                raise DrafterforgeError(f"{self.name} needs the coverage of every cycle, got {feedback.coverage!r}")
            share = float(measured(feedback.coverage, "coverage"))
        else:
            if not 1 <= feedback.accept_length <= feedback.depth + 1:
                raise DrafterforgeError(
                    f"a cycle of depth {feedback.depth} emits 1 to depth + 1 tokens, got {feedback.accept_length}"
                )
            share = (feedback.accept_length - 1) / self.depth
        if self.costs is None:
            return share
        length = geometric_length(share, self.depth) if self.reward == "coverage" else 1.0 + self.depth * share
        lengths = np.full(self.num_drafters, length)
        return float(1.0 - length_loss(lengths, self.depth, self.costs)[feedback.drafter])
