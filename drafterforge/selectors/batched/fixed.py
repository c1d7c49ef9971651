"""Selectors of many requests that do not learn.  Axes: B rows, N drafters."""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.selectors.batched.base import BatchedSelector
from drafterforge.selectors.fixed import Static


class BatchedStatic(BatchedSelector):
    """Always one drafter; if the mask excludes it, the first that is allowed."""

    def __init__(self, rule: Static, num_slots: int, device: torch.device | str = "cpu") -> None:
        super().__init__(rule, num_slots, device)
        self.scores = self._zeros(self.num_drafters)
        self.scores[rule.drafters.index(rule.drafter)] = 1.0

    def choose(self, slots: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The drafter, if it is allowed."""
        return self.best(slots, self.scores.expand(len(slots), -1), allowed)


class BatchedRandom(BatchedSelector):
    """Random allowed drafters, all equally likely."""

    def choose(self, slots: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Random drafters."""
        return self.from_probs(slots, self.played.new_ones(len(slots), self.num_drafters), allowed, "sample")
