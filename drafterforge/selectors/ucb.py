"""Upper confidence bounds: UCB1 with windows or discount, and BanditSpec's UCBSpec.  Axes: N drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.base import Choice, Context, at_least, one_of, whole_number

WINDOWINGS = ("arm", "rounds")


def ucb1_scores(means: np.ndarray, counts: np.ndarray, rounds: np.ndarray | float, c: float) -> np.ndarray:
    """mean + c sqrt(2 ln t / n), [..., N]; infinite where n = 0.  means, counts: [..., N]."""
    bonus = c * np.sqrt(2.0 * np.log(np.maximum(rounds, 1.0)) / np.where(counts > 0, counts, 1.0))
    return np.where(counts > 0, means + bonus, np.inf)


def ucbspec_scores(
    means: np.ndarray, counts: np.ndarray, rounds: float, depth: int | np.ndarray, delta: float, scale: float = 1.0
) -> np.ndarray:
    """Mean tokens of a cycle plus BanditSpec's confidence radius, [..., N]; infinite where n = 0.

    The radius is (L / 2) sqrt((1 + n) / n^2 (1 + 2 ln(N t^2 sqrt(1 + n) / delta))).  means, counts: [..., N].
    depth: L.  The paper has one; L / 2 bounds the spread of a drafter of L levels, so each may have its own, [N].
    """
    n = np.where(counts > 0, counts, 1.0)
    log = np.log(counts.shape[-1] * max(rounds, 1.0) ** 2 * np.sqrt(1.0 + n) / delta)
    radius = scale * depth / 2.0 * np.sqrt((1.0 + n) / n**2 * (1.0 + 2.0 * log))
    return np.where(counts > 0, means + radius, np.inf)


class UCB1(Bandit):
    """UCB1 (Auer, Cesa-Bianchi, Fischer 2002): each drafter once, in order, then the highest bound."""

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        c: float = 1.0,
        window: int = 0,
        windowing: str = "arm",
        discount: float = 1.0,
        **shared: Any,
    ) -> None:
        """c: weight of exploration.  window: number of latest rewards that count; 0: all.

        windowing: with `arm` the window holds the latest rewards of each drafter, and counts are totals, so a drafter
        is not tried again merely because it was not used for long (FlashSpec); with `rounds` it holds the latest
        rounds of all drafters, counts included.
        discount: factor of a round's weight in each later round (Garivier, Moulines 2011).
        """
        self.c = at_least("c", c, 0)
        self.window = whole_number("window", window, 0)
        self.windowing = one_of("windowing", windowing, WINDOWINGS)
        self.discount = at_least("discount", discount, 0, 1)
        super().__init__(drafters, depth, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Sum and count of rewards, [N]."""
        return {"sums": 0.0, "counts": 0.0}

    def blank(self) -> dict[str, Any]:
        """Number of rounds; drafter and reward of the rounds in the window, oldest first."""
        return {"rounds": 0, "recent": []}

    def learn(self, drafter: int, reward: float) -> None:
        """Add a reward; drop the ones that leave the window."""
        self.rounds += 1
        self.sums *= self.discount
        self.counts *= self.discount
        self.sums[drafter] += reward
        self.counts[drafter] += 1
        if not self.window:
            return
        self.recent.append([drafter, reward])
        if self.windowing == "rounds":
            self.recent = self.recent[-self.window :]
        elif sum(played == drafter for played, _ in self.recent) > self.window:
            del self.recent[next(index for index, (played, _) in enumerate(self.recent) if played == drafter)]

    def scores(self) -> np.ndarray:
        """Upper confidence bounds, [N]."""
        sums, counts, rounds = self.sums, self.counts, self.rounds
        if self.window:
            drafters, rewards = zip(*self.recent, strict=True) if self.recent else ((), ())
            sums = np.bincount(np.array(drafters, int), rewards, self.num_drafters)
            inside = np.bincount(np.array(drafters, int), minlength=self.num_drafters).astype(float)
            if self.windowing == "rounds":
                counts, rounds = inside, min(rounds, self.window)
        else:
            inside = counts
        if self.discount < 1:
            rounds = counts.sum()
        means = sums / np.where(inside > 0, inside, 1.0)
        return ucb1_scores(means, counts, rounds, self.c)

    def select(self, context: Context) -> Choice:
        """The drafter with the highest bound."""
        return self.best(self.scores(), context)

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index` and its rewards."""
        super().remove_drafter(index)
        self.recent = [[i - (i > index), reward] for i, reward in self.recent if i != index]


class UCBSpec(Bandit):
    """UCBSpec (BanditSpec 2025): an anytime confidence bound on tokens per cycle."""

    def __init__(
        self, drafters: Sequence[str], depth: int, *, delta: float = 0.05, scale: float = 1.0, **shared: Any
    ) -> None:
        """delta: probability that the bounds fail; the paper gives none.  scale: of the radius (ours)."""
        self.delta, self.scale = at_least("delta", delta, 1e-300, 1), at_least("scale", scale, 0)
        super().__init__(drafters, depth, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Sum and count of rewards, [N]."""
        return {"sums": 0.0, "counts": 0.0}

    def blank(self) -> dict[str, Any]:
        """Number of rounds."""
        return {"rounds": 0}

    def learn(self, drafter: int, reward: float) -> None:
        """Add a reward."""
        self.rounds += 1
        self.sums[drafter] += reward
        self.counts[drafter] += 1

    def select(self, context: Context) -> Choice:
        """The drafter with the highest bound."""
        means = 1.0 + self.depth * self.sums / np.maximum(self.counts, 1.0)
        depth = self.depth if self.costs is not None else self.levels
        return self.best(ucbspec_scores(means, self.counts, self.rounds, depth, self.delta, self.scale), context)
