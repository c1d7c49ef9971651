"""What all learners do with losses: add up regrets, of which each makes its law.  Axes: N drafters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors.base import at_least, whole
from drafterforge.selectors.laws import restricted
from drafterforge.selectors.memory import Memory
from drafterforge.selectors.naming import keyword_options

SLACK = 1e-9  # rounding that a loss in [0, 1] may carry


class Learner(Memory, ABC):
    """A law over drafters that follows their losses in [0, 1]."""

    def __init__(self, num_drafters: int, *, discount: float = 1.0) -> None:
        """discount: what a round's regret keeps of its weight with every later round."""
        self.num_drafters = whole("num_drafters", num_drafters, 1)
        self.discount = at_least("discount", discount, 0, 1)
        self._law: tuple[np.ndarray, np.ndarray] | None = None  # the regrets it was made of, and the law
        self.reset()

    @classmethod
    def option_names(cls) -> list[str]:
        """Options of this learner."""
        return list(dict.fromkeys([*keyword_options(cls, Learner), "discount"]))

    def blank_rows(self) -> dict[str, Any]:
        """Loss of the law played less the drafter's own, added up."""
        return {"regrets": 0.0}

    def blank(self) -> dict[str, Any]:
        """Rounds seen."""
        return {"rounds": 0}

    @property
    def probs(self) -> np.ndarray:
        """The law to play next, [N]."""
        if self._law is None or self._law[0] is not self.regrets:
            self._law = self.regrets, self.law()
        return self._law[1]

    @abstractmethod
    def law(self) -> np.ndarray:
        """The law that the regrets make, [N]."""

    def update(self, losses: np.ndarray, played: np.ndarray | None = None, awake: np.ndarray | None = None) -> None:
        """Learn a round: losses in [0, 1], [N].

        played: the law of that round, [N]; by default the present one.  awake: drafters that took part, [N]; the
        regret of others stays (sleeping experts), and their losses may be NaN.
        """
        try:
            losses = np.asarray(losses, dtype=np.float64)
        except (TypeError, ValueError):
            raise DrafterforgeError(f"{self.num_drafters} losses in [0, 1] are needed, got {losses!r}") from None
        played = self.probs if played is None else played
        fits = losses.shape == (self.num_drafters,)
        if fits and awake is not None and not awake.all():
            if not awake.any():
                return
            played = restricted(played, awake)
            losses = np.where(awake, losses, losses[awake][0])
        if not (fits and losses.min() >= -SLACK and losses.max() <= 1 + SLACK):
            raise DrafterforgeError(f"{self.num_drafters} losses in [0, 1] are needed, got {losses.tolist()}")
        gaps = losses - losses.min()  # equal losses then leave no rounding, which NormalHedge would take for regret
        regrets = played @ gaps - gaps
        if awake is not None:
            regrets = np.where(awake, regrets, 0.0)
        self.rounds += 1
        self.learn(regrets)

    def learn(self, regrets: np.ndarray) -> None:
        """Add a round's regrets [N]."""
        self.regrets = self.discount * self.regrets + regrets
