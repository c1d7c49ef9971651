"""Follow the leader: always the drafter with the smallest total loss."""

from __future__ import annotations

import numpy as np

from drafterforge.selectors.learners.base import Learner
from drafterforge.selectors.probabilities import one_hot


class FollowTheLeader(Learner):
    """Follow the leader: good if losses are stationary, without a bound if they are not."""

    def compute_probs(self) -> np.ndarray:
        """One-hot, [N]; the first of equal leaders."""
        return one_hot(int(self.regrets.argmax()), self.num_drafters)
