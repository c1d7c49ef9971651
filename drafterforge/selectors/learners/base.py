"""The base of learners: it sums regrets, which each learner turns into probabilities.  Axes: N drafters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors.base import at_least, whole_number
from drafterforge.selectors.memory import Memory
from drafterforge.selectors.naming import keyword_options
from drafterforge.selectors.probabilities import restricted

SLACK = 1e-9  # rounding error of a loss in [0, 1]


class Learner(Memory, ABC):
    """Probabilities over drafters that follow their losses in [0, 1]."""

    def __init__(self, num_drafters: int, *, discount: float = 1.0) -> None:
        """discount: factor of a round's regret in each later round."""
        self.num_drafters = whole_number("num_drafters", num_drafters, 1)
        self.discount = at_least("discount", discount, 0, 1)
        self._cache: tuple[np.ndarray, np.ndarray] | None = None  # regrets, and their probabilities
        self.reset()

    @classmethod
    def option_names(cls) -> list[str]:
        """Options of this learner."""
        return list(dict.fromkeys([*keyword_options(cls, Learner), "discount"]))

    def blank_rows(self) -> dict[str, Any]:
        """Regrets, [N]: the sum of the expected loss of the choices less the drafter's own loss."""
        return {"regrets": 0.0}

    def blank(self) -> dict[str, Any]:
        """Number of rounds."""
        return {"rounds": 0}

    @property
    def probs(self) -> np.ndarray:
        """Probabilities of the next choice, [N]."""
        if self._cache is None or self._cache[0] is not self.regrets:
            self._cache = self.regrets, self.compute_probs()
        return self._cache[1]

    @abstractmethod
    def compute_probs(self) -> np.ndarray:
        """Probabilities by the present regrets, [N]."""

    def update(
        self,
        losses: np.ndarray,
        probs: np.ndarray | None = None,
        awake: np.ndarray | None = None,
        begins_cycle: bool = True,
    ) -> None:
        """Learn from a round with losses in [0, 1], [N].

        probs: `played` at the choice of that round; None: at the present one.  awake: drafters that took part,
        [N] bool; the regrets of the others stay (sleeping experts), and their losses may be NaN.
        begins_cycle: whether a drafter was chosen for a cycle that begins at the round.
        """
        try:
            losses = np.asarray(losses, dtype=np.float64)
        except (TypeError, ValueError):
            raise DrafterforgeError(f"{self.num_drafters} losses in [0, 1] are needed, got {losses!r}") from None
        probs = self.played(self.probs) if probs is None else probs
        fits = losses.shape == (self.num_drafters,)
        if fits and awake is not None and not awake.all():
            if not awake.any():
                return
            probs = np.apply_along_axis(restricted, -1, probs, awake)
            losses = np.where(awake, losses, losses[awake][0])
        if not (fits and losses.min() >= -SLACK and losses.max() <= 1 + SLACK):
            raise DrafterforgeError(f"{self.num_drafters} losses in [0, 1] are needed, got {losses.tolist()}")
        gaps = losses - losses.min()  # so equal losses leave no rounding error, which NormalHedge would treat as regret
        self.rounds += 1
        self.advance(gaps, probs, awake, begins_cycle)

    def played(self, probs: np.ndarray) -> np.ndarray:
        """What regrets of a round refer to, [..., N].  probs: distribution of its choice, [N]."""
        return probs

    def advance(self, gaps: np.ndarray, probs: np.ndarray, awake: np.ndarray | None, begins_cycle: bool) -> None:
        """Learn from a round's losses less the smallest, [N]; see `update`."""
        regrets = probs @ gaps - gaps
        self.learn(regrets if awake is None else np.where(awake, regrets, 0.0))

    def learn(self, regrets: np.ndarray) -> None:
        """Add a round's regrets [N]."""
        self.regrets = self.discount * self.regrets + regrets
