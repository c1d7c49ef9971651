"""Thompson sampling with a Beta law per drafter.  Axes: N drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.base import Choice, Context, at_least, one_of

ROUNDINGS = ("fractional", "bernoulli")


class Thompson(Bandit):
    """Plays the drafter whose draw from its own law is the highest."""

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        rounding: str = "fractional",
        decay: float = 1.0,
        **shared: Any,
    ) -> None:
        """rounding: a reward r is r successes, `fractional`, or one with probability r, `bernoulli`.

        Only the latter has the guarantee of Agrawal and Goyal (2012).
        decay: what all laws keep of their distance from Beta(1, 1) with every round.
        """
        self.rounding = one_of("rounding", rounding, ROUNDINGS)
        self.decay = at_least("decay", decay, 0, 1)
        super().__init__(drafters, depth, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Beta(1, 1): every mean reward is as likely."""
        return {"alpha": 1.0, "beta": 1.0}

    def learn(self, drafter: int, reward: float) -> None:
        """Add a reward to the drafter's law."""
        if self.rounding == "bernoulli":
            reward = float(self.rng.random() < reward)
        if self.decay < 1:
            self.alpha, self.beta = 1 + self.decay * (self.alpha - 1), 1 + self.decay * (self.beta - 1)
        self.alpha[drafter] += reward
        self.beta[drafter] += 1 - reward

    def select(self, context: Context) -> Choice:
        """The highest draw."""
        return self.best(self.rng.beta(self.alpha, self.beta), context)
