"""Thompson sampling with a Beta posterior per drafter.  Axes: N drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.base import Choice, Context, at_least, one_of, whole_number

ROUNDINGS = ("fractional", "bernoulli")


class Thompson(Bandit):
    """Selects the drafter with the highest draw from its posterior."""

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        rounding: str = "fractional",
        decay: float = 1.0,
        window: int = 0,
        **shared: Any,
    ) -> None:
        """rounding: a reward r counts as r successes (`fractional`), or as one with probability r (`bernoulli`).

        Only `bernoulli` has the guarantee of Agrawal and Goyal (2012).
        decay: factor of every posterior's distance from Beta(1, 1) in each round.
        window: number of latest rounds, of all drafters, that count; 0: all.
        """
        self.window = whole_number("window", window, 0)
        self.rounding = one_of("rounding", rounding, ROUNDINGS)
        self.decay = at_least("decay", decay, 0, 1)
        super().__init__(drafters, depth, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Parameters of the Beta posteriors, [N]; Beta(1, 1) is uniform."""
        return {"alpha": 1.0, "beta": 1.0}

    def blank(self) -> dict[str, Any]:
        """Drafter and reward of the rounds in the window, oldest first."""
        return {"recent": []}

    def learn(self, drafter: int, reward: float) -> None:
        """Add a reward to the drafter's posterior."""
        if self.rounding == "bernoulli":
            reward = float(self.rng.random() < reward)
        if self.decay < 1:
            self.alpha, self.beta = 1 + self.decay * (self.alpha - 1), 1 + self.decay * (self.beta - 1)
        self.alpha[drafter] += reward
        self.beta[drafter] += 1 - reward
        if not self.window:
            return
        self.recent.append([drafter, reward])
        self.recent = self.recent[-self.window :]
        drafters, rewards = (np.array(column) for column in zip(*self.recent, strict=True))
        drafters, ages = drafters.astype(int), np.arange(len(drafters))[::-1]
        self.alpha = 1.0 + np.bincount(drafters, rewards * self.decay**ages, self.num_drafters)
        self.beta = 1.0 + np.bincount(drafters, (1.0 - rewards) * self.decay**ages, self.num_drafters)

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index` and its rewards."""
        super().remove_drafter(index)
        self.recent = [[i - (i > index), reward] for i, reward in self.recent if i != index]

    def select(self, context: Context) -> Choice:
        """The drafter with the highest draw."""
        return self.best(self.rng.beta(self.alpha, self.beta), context)
