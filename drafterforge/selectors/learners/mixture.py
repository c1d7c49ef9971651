"""NormalHedge over NormalHedges that discount differently: one remembers all rounds, the others track (ours).

Axes: N drafters, D discounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drafterforge.errors import ConfigError, quote
from drafterforge.selectors.base import at_least
from drafterforge.selectors.learners.base import Learner
from drafterforge.selectors.learners.normalhedge import normalhedge_rows

DISCOUNTS = (1.0, 0.97, 0.9, 0.7)
SLACK = 1e-12  # rounding error of a regret, which NormalHedge, free of scale, would follow


def exact(regrets: np.ndarray) -> np.ndarray:
    """Regrets of a round without rounding errors of 0."""
    return np.where(np.abs(regrets) < SLACK, 0.0, regrets)


class Mixture(Learner):
    """A NormalHedge for each discount, and an undiscounted NormalHedge that weighs these learners by their losses.

    Guarantee, for any losses fixed in advance, with choices drawn from `probs` and without delay: the expected regret
    to the best of the D learners grows as sqrt(T ln D) with the number T of cycles, up to terms in ln T.  The learner
    with discount 1 is NormalHedge, whose regret to the best drafter grows as sqrt(T ln N).  So in a stationary world
    the regret per cycle goes to 0, and the mixture follows a tracking learner wherever that loses less.
    The learners count every position, as HedgeSpec does.  The weights count only positions at which a cycle begins: a
    long cycle covers many positions but is one choice, so counting positions overrates drafters that hit in bursts.
    """

    def __init__(self, num_drafters: int, *, discounts: Sequence[float] = DISCOUNTS) -> None:
        """discounts: factor of a round's regret in each later round, of each learner."""
        if isinstance(discounts, str | float | int) or not len(discounts):
            raise ConfigError(f"discounts must be a list of numbers, got {quote(discounts)}")
        self.discounts = np.array([at_least("discounts", value, 0, 1) for value in discounts])
        super().__init__(num_drafters)

    @classmethod
    def option_names(cls) -> list[str]:
        """The discounts."""
        return ["discounts"]

    def blank_rows(self) -> dict[str, Any]:
        """Regrets of each learner to each drafter, [N, D]."""
        return {"regrets": np.zeros(len(self.discounts))}

    def blank(self) -> dict[str, Any]:
        """Number of rounds; regrets of the mixture to each learner, [D]."""
        return super().blank() | {"excess": [0.0] * len(self.discounts)}

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._rows: tuple[np.ndarray | None, np.ndarray] = None, np.empty(0)

    def learner_probs(self) -> np.ndarray:
        """Probabilities of each learner, [D, N]."""
        if self._rows[0] is not self.regrets:
            self._rows = self.regrets, normalhedge_rows(self.regrets.T)
        return self._rows[1]

    def compute_probs(self) -> np.ndarray:
        """The learners' probabilities, weighted."""
        return normalhedge_rows(np.array(self.excess)) @ self.learner_probs()

    def played(self, probs: np.ndarray) -> np.ndarray:
        """Distributions of each learner and of the choice, [D + 1, N]."""
        return np.vstack((self.learner_probs(), probs))

    def advance(self, gaps: np.ndarray, probs: np.ndarray, awake: np.ndarray | None, begins_cycle: bool) -> None:
        """See `Learner`.  probs: see `played`."""
        *losses, played = (probs @ gaps).tolist()
        regrets = exact(np.array(losses) - gaps[:, None])
        if awake is not None:
            regrets[~awake] = 0.0
        self.regrets = self.discounts * self.regrets + regrets
        if begins_cycle:
            self.excess = (self.excess + exact(played - np.array(losses))).tolist()
