"""Follow the leader: all weight on the drafter of the smallest loss so far."""

from __future__ import annotations

import numpy as np

from drafterforge.selectors.laws import one_hot
from drafterforge.selectors.learners.base import Learner


class FollowTheLeader(Learner):
    """As good as any where drafters do not change, without a bound where they do."""

    def law(self) -> np.ndarray:
        """One-hot, [N]; of equal leaders the first."""
        return one_hot(int(self.regrets.argmax()), self.num_drafters)
