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

REWARDS = {"efficiency": None, "coverage": "coverage", "divergence": "overlap"}  # and the feedback that they are


class Bandit(Selector):
    """A selector that learns from the reward of each cycle."""

    def __init__(self, drafters: Sequence[str], depth: int, *, reward: str = "efficiency", **shared: Any) -> None:
        """reward: `efficiency`, accepted tokens over `depth` (MetaSD's BE), `divergence` (its BD) or `coverage`.

        See `metasd`.
        """
        super().__init__(drafters, depth, **shared)
        self.reward = one_of("reward", reward, list(REWARDS))
        self.needs = Needs(coverage=reward == "coverage", overlap=reward == "divergence")
        self.reset()

    def observe(self, feedback: Feedback) -> None:
        """Learn from the reward of a cycle; not where the end of an answer left no room to draft."""
        if feedback.depth > 0 or self.levels[feedback.drafter] == 0:
            self.learn(feedback.drafter, self.reward_of(feedback))

    @abstractmethod
    def learn(self, drafter: int, reward: float) -> None:
        """Learn from a cycle of `drafter` with `reward`, in [0, 1]."""

    def reward_of(self, feedback: Feedback) -> float:
        """The reward of a cycle; with costs, its tokens per second as a share of the best possible.

        Accepted tokens are divided by the levels of the deepest drafter, so a shallower drafter cannot reach 1.
        """
        measurement = REWARDS[self.reward]
        if measurement is not None:
            share = getattr(feedback, measurement)
            if share is None or share != share:
                raise DrafterforgeError(f"{self.name} needs the {measurement} of every cycle, got {share!r}")
            share = float(measured(share, measurement))
        else:
            if not 1 <= feedback.accept_length <= feedback.depth + 1:
                raise DrafterforgeError(
                    f"a cycle of depth {feedback.depth} emits 1 to depth + 1 tokens, got {feedback.accept_length}"
                )
            share = (feedback.accept_length - 1) / self.depth
        if self.costs is None:
            return share
        levels = self.levels[feedback.drafter] if self.reward == "divergence" else self.depth  # of the mean
        length = 1.0 + self.depth * share if measurement is None else geometric_length(share, levels)
        lengths = np.full(self.num_drafters, length)
        return float(1.0 - length_loss(lengths, self.depth, self.costs)[feedback.drafter])
