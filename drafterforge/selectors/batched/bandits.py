"""Bandits of many requests: they learn from the accepted tokens of the selected drafters.

Axes: B rows, N drafters, F sums per drafter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.batched.base import REAL, BatchedSelector, unavailable
from drafterforge.selectors.exp3 import Exp3
from drafterforge.selectors.thompson import Thompson
from drafterforge.selectors.ucb import UCB1, UCBSpec


class BatchedBandit(BatchedSelector):
    """Selectors that sum outcomes of the selected drafters; a round is a cycle that drafted."""

    def __init__(
        self,
        rule: Bandit,
        num_slots: int,
        device: torch.device | str = "cpu",
        *,
        num_totals: int = 2,
        decay: float = 1.0,
    ) -> None:
        """See `BatchedSelector`."""
        if rule.reward != "efficiency":
            raise unavailable(rule, "reward", rule.reward, "type reward=efficiency")
        super().__init__(rule, num_slots, device, num_totals=num_totals, decay=decay)
        self.never_drafts = torch.tensor(rule.levels.tolist(), device=self.device) == 0  # [N]

    def observe(self, slots: Tensor, hits: Tensor, counts: Tensor, depths: Tensor) -> None:
        """Learn from the rewards of cycles, see `Bandit.observe` and `Bandit.reward_of`."""
        arms = self.arms.index_select(0, slots)
        learns = ((counts > 0) & ((depths > 0) | self.never_drafts.index_select(0, arms))).to(REAL)
        if self._costs is None:
            rewards = (counts - 1).to(REAL) / self.depth
        else:
            rewards = counts * self.speeds.index_select(0, arms)
        plays = (arms[:, None] == self.indices) * learns[:, None]
        sums = self.outcomes(slots, arms, rewards)[..., None] * plays[:, None]
        if self.decay < 1:
            sums.addcmul_(self.totals.index_select(0, slots), (self.decay**learns)[:, None, None])
            self.totals.index_copy_(0, slots, sums)
        else:
            self.totals.index_add_(0, slots, sums)
        self.rounds.index_add_(0, slots, learns)

    def outcomes(self, slots: Tensor, arms: Tensor, rewards: Tensor) -> Tensor:
        """What a cycle adds to the sums of its drafter, [B, F]: here its reward and a count."""
        return torch.stack((rewards, torch.ones_like(rewards)), dim=1)


class BatchedUCB1(BatchedBandit):
    """UCB1, also discounted, see `ucb1_scores`."""

    rule: UCB1

    def __init__(self, rule: UCB1, num_slots: int, device: torch.device | str = "cpu") -> None:
        """See `BatchedSelector`."""
        if rule.window:
            raise unavailable(rule, "window", rule.window, "type window=0")
        super().__init__(rule, num_slots, device, decay=rule.discount)

    def choose(self, slots: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The drafters with the highest bounds."""
        sums, counts = self.totals.index_select(0, slots).unbind(dim=1)
        log = counts.sum(dim=-1, keepdim=True).clamp_(min=1.0).log_()
        bounds = sums / counts + self.rule.c * (2.0 * log / counts).sqrt_()
        return self.best(slots, torch.where(counts > 0, bounds, torch.inf), allowed)


class BatchedUCBSpec(BatchedBandit):
    """BanditSpec's UCBSpec, see `ucbspec_scores`."""

    rule: UCBSpec

    def __init__(self, rule: UCBSpec, num_slots: int, device: torch.device | str = "cpu") -> None:
        """See `BatchedSelector`."""
        super().__init__(rule, num_slots, device)
        self.levels = torch.tensor(rule.levels.tolist(), dtype=REAL, device=self.device)

    def choose(self, slots: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The drafters with the highest bounds."""
        sums, counts = self.totals.index_select(0, slots).unbind(dim=1)
        rounds = counts.sum(dim=-1, keepdim=True).clamp_(min=1.0)
        log = (rounds.square_() * (self.num_drafters / self.rule.delta) * (1.0 + counts).sqrt_()).log_()
        radius = ((1.0 + counts) / counts.square() * (1.0 + 2.0 * log)).sqrt_() * (self.rule.scale / 2.0)
        depth = self.depth if self._costs is not None else self.levels  # as in `UCBSpec`
        bounds = 1.0 + self.depth * sums / counts + radius * depth
        return self.best(slots, torch.where(counts > 0, bounds, torch.inf), allowed)


class BatchedExp3(BatchedBandit):
    """EXP3Spec, see `exp3_probs`."""

    rule: Exp3

    def __init__(self, rule: Exp3, num_slots: int, device: torch.device | str = "cpu") -> None:
        """See `BatchedSelector`."""
        super().__init__(rule, num_slots, device, num_totals=1)

    def outcomes(self, slots: Tensor, arms: Tensor, rewards: Tensor) -> Tensor:
        """The loss over the drafter's probability, so that its estimate is unbiased."""
        return (1.0 - rewards)[:, None] / self.played.index_select(0, slots).gather(1, arms[:, None])

    def choose(self, slots: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Drafters drawn from `exp3_probs`."""
        scale = self.rule.scale * math.sqrt(math.log(self.num_drafters) / self.num_drafters)
        rates = scale / (self.rounds.index_select(0, slots) + 1.0).sqrt_()
        weights = torch.softmax(self.totals.index_select(0, slots)[:, 0] * -rates[:, None], dim=-1)
        return self.from_probs(slots, weights, allowed, "sample")


class BatchedThompson(BatchedBandit):
    """Thompson sampling; the sums are successes and failures, with the posterior Beta(1 + successes, 1 + failures)."""

    rule: Thompson

    def __init__(self, rule: Thompson, num_slots: int, device: torch.device | str = "cpu") -> None:
        """See `BatchedSelector`."""
        if rule.window:
            raise unavailable(rule, "window", rule.window, "type window=0")
        super().__init__(rule, num_slots, device, decay=rule.decay)

    def outcomes(self, slots: Tensor, arms: Tensor, rewards: Tensor) -> Tensor:
        """Successes and failures."""
        if self.rule.rounding == "bernoulli":
            rewards = (torch.rand(rewards.shape, generator=self.generator, device=self.device) < rewards).to(REAL)
        return torch.stack((rewards, 1.0 - rewards), dim=1)

    def choose(self, slots: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The drafters with the highest draws: of Gamma variables X and Y, X / (X + Y) has a Beta distribution."""
        draws = torch._standard_gamma(self.totals.index_select(0, slots) + 1.0, generator=self.generator)
        return self.best(slots, draws[:, 0] / draws.sum(dim=1), allowed)
