"""MetaSD 2025: bandits over drafters, rewarded by acceptance probabilities.  Its EXP3 is `exp3` with that reward.

`divergence` is the paper's reward BD: the mean of 1 - TV(p, q) over all drafted positions, also those after the first
rejected token.  It is the probability that verification of a sampled chain accepts; the positions of a tree are those
of its likeliest branch.  Our trees are verified by sample-and-match, which accepts with the target's mass on the
children of a node, whatever q is: `coverage` (ours) is the mean of that mass over the levels of the deepest drafter.
`efficiency` is the paper's BE.

Axes: N drafters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.base import Choice, Context, at_least, whole_number
from drafterforge.selectors.ucb import UCB1


class MetaSDUCB(UCB1):
    """mean + beta sqrt(2 ln t / n): UCB1 with the paper's constant beta."""

    def __init__(
        self, drafters: Sequence[str], depth: int, *, beta: float = 1.0, reward: str = "divergence", **shared: Any
    ) -> None:
        """beta: weight of exploration; the paper gives no value.  reward: see `Bandit`."""
        super().__init__(drafters, depth, c=at_least("beta", beta, 0), reward=reward, **shared)

    @classmethod
    def option_names(cls, **preset: Any) -> list[str]:
        """Options of UCB1, with `beta` instead of `c`."""
        return [name for name in super().option_names(**preset) if name != "c"]


class SequentialHalving(Bandit):
    """Plays drafters in turns of consecutive cycles, and drops the worse half after each phase until one is left.

    A phase needs only one switch per drafter, which matters if a switch costs a prefill.
    """

    def __init__(
        self, drafters: Sequence[str], depth: int, *, budget: int = 32, reward: str = "divergence", **shared: Any
    ) -> None:
        """budget: cycles until one drafter is left; every phase plays each of its drafters at least once."""
        self.budget = whole_number("budget", budget, 1)
        super().__init__(drafters, depth, reward=reward, **shared)

    def blank_rows(self) -> dict[str, Any]:
        """Whether each drafter is left, 0 or 1, and the sum and count of its rewards in this phase, [N]."""
        return {"left": 1.0, "sums": 0.0, "counts": 0.0}

    def turn(self) -> int:
        """Cycles of each drafter in this phase."""
        phases = (self.num_drafters - 1).bit_length()
        return max(self.budget // max(int(self.left.sum()) * phases, 1), 1)

    def learn(self, drafter: int, reward: float) -> None:
        """Add a reward; end the phase after the last turn."""
        self.sums[drafter] += reward
        self.counts[drafter] += 1
        rivals = self.left.nonzero()[0]
        if len(rivals) > 1 and self.counts[rivals].min() >= self.turn():
            means = self.sums[rivals] / self.counts[rivals]
            best = rivals[np.argsort(-means, kind="stable")[: (len(rivals) + 1) // 2]]
            self.reset()
            self.left = np.zeros(self.num_drafters)
            self.left[best] = 1.0

    def select(self, context: Context) -> Choice:
        """The first drafter left with cycles to play in this phase; if the mask excludes these, another one left."""
        waiting = self.left * (self.counts < self.turn())
        return self.best(2.0 * waiting + self.left, context)

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index`; if it was the only one left, start again with all."""
        super().remove_drafter(index)
        if not self.left.any():
            self.reset()
