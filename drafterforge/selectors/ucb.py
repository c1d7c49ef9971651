"""Upper confidence bounds: UCB1 with its windows, and BanditSpec's UCBSpec.  Axes: N drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.base import Choice, Context, at_least, one_of, whole

WINDOWINGS = ("arm", "rounds")


def ucb1_scores(means: np.ndarray, counts: np.ndarray, rounds: np.ndarray | float, c: float) -> np.ndarray:
    """mean + c sqrt(2 ln t / n), [..., N]; infinite where n = 0.  means, counts: [..., N]."""
    bonus = c * np.sqrt(2.0 * np.log(np.maximum(rounds, 1.0)) / np.where(counts > 0, counts, 1.0))
    return np.where(counts > 0, means + bonus, np.inf)


def ucbspec_scores(
    means: np.ndarray, counts: np.ndarray, rounds: float, depth: int, delta: float, scale: float = 1.0
) -> np.ndarray:
    """Mean tokens of a cycle and BanditSpec's confidence radius, [..., N]; infinite where n = 0.

    The radius is (L / 2) sqrt((1 + n) / n^2 (1 + 2 ln(N t^2 sqrt(1 + n) / delta))).  means, counts: [..., N].
    """
    n = np.where(counts > 0, counts, 1.0)
    log = np.log(counts.shape[-1] * max(rounds, 1.0) ** 2 * np.sqrt(1.0 + n) / delta)
    radius = scale * depth / 2.0 * np.sqrt((1.0 + n) / n**2 * (1.0 + 2.0 * log))
    return np.where(counts > 0, means + radius, np.inf)


class UCB1(Bandit):
    """Auer, Cesa-Bianchi, Fischer 2002; each drafter once, in order, then the highest bound."""

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
        """c: how much to explore.  window: latest rewards that count; 0: all.

        windowing: `arm`, the window holds each drafter's latest rewards and counts are totals, so that a drafter long
        unused is not tried again (FlashSpec); or `rounds`, it holds the latest rounds of all, counts included.
        discount: what a round keeps of its weight with every later one (Garivier, Moulines 2011).
        """
        self.c = at_least("c", c, 0)
        self.window = whole("window", window, 0)
        self.windowing = one_of("windowing", windowing, WINDOWINGS)
        self.discount = at_least("discount", discount, 0, 1)
        super().__init__(drafters, depth, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Rewards added up and counted, [N]."""
        return {"sums": 0.0, "counts": 0.0}

    def blank(self) -> dict[str, Any]:
        """Rounds in all, and the window's: drafter and reward of each, oldest first."""
        return {"rounds": 0, "recent": []}

    def learn(self, drafter: int, reward: float) -> None:
        """Add a reward; what leaves the window goes."""
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
            del self.recent[next(place for place, (played, _) in enumerate(self.recent) if played == drafter)]

    def scores(self) -> np.ndarray:
        """Upper bounds, [N]."""
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
        """The highest bound."""
        return self.best(self.scores(), context)

    def remove_drafter(self, index: int) -> None:
        """Its rewards leave the window."""
        super().remove_drafter(index)
        self.recent = [[i - (i > index), reward] for i, reward in self.recent if i != index]


class UCBSpec(Bandit):
    """BanditSpec 2025: a bound that holds at all times at once, on tokens per cycle."""

    def __init__(
        self, drafters: Sequence[str], depth: int, *, delta: float = 0.05, scale: float = 1.0, **shared: Any
    ) -> None:
        """delta: how often the bounds may fail; the paper names none.  scale: of the radius, ours; the paper's is 1."""
        self.delta, self.scale = at_least("delta", delta, 1e-300, 1), at_least("scale", scale, 0)
        super().__init__(drafters, depth, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Rewards added up and counted, [N]."""
        return {"sums": 0.0, "counts": 0.0}

    def blank(self) -> dict[str, Any]:
        """Rounds seen."""
        return {"rounds": 0}

    def learn(self, drafter: int, reward: float) -> None:
        """Add a reward."""
        self.rounds += 1
        self.sums[drafter] += reward
        self.counts[drafter] += 1

    def select(self, context: Context) -> Choice:
        """The highest bound."""
        means = 1.0 + self.depth * self.sums / np.maximum(self.counts, 1.0)
        return self.best(ucbspec_scores(means, self.counts, self.rounds, self.depth, self.delta, self.scale), context)
