"""Probabilities of the learners of full information for many requests.  Axes: B rows, N drafters, R rounds, F sums.

Each function is the twin of the function with its name in `selectors.learners`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from drafterforge.selectors.batched.base import REAL
from drafterforge.selectors.learners import AdaNormalHedge, FollowTheLeader, Hedge, Learner, NormalHedge, Squint
from drafterforge.selectors.learners.hedge import hedge_rate
from drafterforge.selectors.learners.mixture import SLACK, Mixture
from drafterforge.selectors.learners.squint import DROP, NODE_WEIGHTS, NODES

NEWTON_STEPS = 4  # leave an error of s below 1e-10 for up to 64 drafters


def hedge_probs(regrets: Tensor, eta: Tensor | float) -> Tensor:
    """Probabilities in proportion to exp(eta R), [..., N].  regrets R: [..., N].  eta: a number, or [..., 1]."""
    return torch.softmax(regrets * eta, dim=-1)


def normalhedge_probs(regrets: Tensor) -> Tensor:
    """Probabilities [B, N]; uniform if no regret is positive.  regrets: [B, N].

    The number of Newton steps for ln mean exp(s u^2) = 1 is fixed, so nothing waits for the device.  Rows without a
    positive regret become NaN in the steps and uniform at the end.
    """
    num_drafters = regrets.shape[-1]
    top = regrets.amax(dim=-1, keepdim=True)
    share = regrets.clamp(min=0.0) / top
    square = share.square()
    base = square.exp()
    # Means over e, whose logarithm is 0 at the root, and their derivatives by s: [B, N, 2].
    means = torch.stack((torch.ones_like(square), square), dim=-1) / (num_drafters * math.e)
    s = torch.full_like(top, math.log(num_drafters * (math.e - 1) + 1))
    for _ in range(NEWTON_STEPS):
        value, slope = torch.bmm((base**s).unsqueeze(1), means).unbind(dim=2)  # [B, 1] each
        s = s.addcdiv(torch.xlogy(value, value), slope, value=-1.0)
    weights = share * base**s
    return torch.where(top > 0, weights / weights.sum(dim=-1, keepdim=True), 1.0 / num_drafters)


def adanormalhedge_probs(regrets: Tensor, spreads: Tensor) -> Tensor:
    """Probabilities in proportion to Phi(R + 1, C + 1) - Phi(R - 1, C + 1), [..., N]; uniform where all are 0."""
    scale = 3.0 * (spreads + 1.0)
    high = (regrets + 1.0).clamp_(min=0.0).square_() / scale
    low = (regrets - 1.0).clamp_(min=0.0).square_() / scale
    weights = -torch.expm1(low - high) * torch.exp(high - high.amax(dim=-1, keepdim=True))
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, weights / total, 1.0 / regrets.shape[-1])


def squint_probs(
    regrets: Tensor, squares: Tensor, nodes: Tensor, node_weights: Tensor, prior: str = "uniform"
) -> Tensor:
    """Probabilities in proportion to an integral over learning rates, [..., N].  nodes: of a quadrature on [-1, 1]."""
    peak = (regrets / (2.0 * squares)).nan_to_num_(nan=0.0).clamp_(0.0, 0.5)
    slope = (regrets - 2.0 * squares * peak).abs_()
    reach = 2.0 * DROP / (slope + (slope.square() + 4.0 * DROP * squares).sqrt_()).clamp_(min=4.0 * DROP)
    low, high = (peak - reach).clamp_(min=0.0), (peak + reach).clamp_(max=0.5)
    half = ((high - low) / 2.0)[..., None]
    eta = low[..., None] + half * (nodes + 1.0)  # [..., N, nodes]
    exponent = eta * (regrets[..., None] - eta * squares[..., None])
    values = half * node_weights * torch.exp(exponent - exponent.amax(dim=(-2, -1), keepdim=True))
    weights = ((eta * values) if prior == "uniform" else values).sum(dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True)


class BatchedLearner:
    """Follow the leader, and the base of the learners: what they sum over rounds, and the probabilities by the sums."""

    num_totals = 1
    num_played = 1  # distributions that `played` returns

    def __init__(self, learner: Learner, device: torch.device) -> None:
        """learner: of one request, whose options count here."""
        self.num_drafters = learner.num_drafters
        self.discounts = [learner.discount] * self.num_totals  # factor of each sum in each round, [F]
        self.indices = torch.arange(self.num_drafters, device=device)

    def played(self, totals: Tensor, probs: Tensor) -> Tensor:
        """What regrets of a round refer to, [B, M N].  probs: distribution of its choice, [B, N]."""
        return probs

    def summands(self, losses: Tensor, gaps: Tensor, begins: Tensor) -> Tensor:
        """What is summed over rounds, [B, F, N, R].

        losses: of what was played, [B, M, R].  gaps: losses of the drafters, [B, N, R].  begins: see `Mixture`,
        [B, 1, R].
        """
        return self.of_regrets(losses - gaps)

    def of_regrets(self, regrets: Tensor) -> Tensor:
        """What is summed over rounds, [B, F, N, R], of regrets [B, N, R]."""
        return regrets[:, None]

    def probs(self, totals: Tensor, rounds: Tensor) -> Tensor:
        """Probabilities of the next choice, [B, N], by the sums [B, F, N] of `rounds` [B]."""
        return (totals[:, 0].argmax(dim=-1, keepdim=True) == self.indices).to(REAL)


class BatchedHedge(BatchedLearner):
    """Hedge; without `eta` and `horizon`, each row has the best rate for its rounds so far."""

    def __init__(self, learner: Hedge, device: torch.device) -> None:
        super().__init__(learner, device)
        self.eta = hedge_rate(self.num_drafters, learner.horizon or 1) if learner.eta is None else learner.eta
        self.adapts = learner.eta is None and learner.horizon is None

    def probs(self, totals: Tensor, rounds: Tensor) -> Tensor:
        """See `hedge_probs`."""
        eta = self.eta / rounds.clamp(min=1.0).sqrt_()[:, None] if self.adapts else self.eta
        return hedge_probs(totals[:, 0], eta)


class BatchedNormalHedge(BatchedLearner):
    """NormalHedge."""

    def probs(self, totals: Tensor, rounds: Tensor) -> Tensor:
        """See `normalhedge_probs`."""
        return normalhedge_probs(totals[:, 0])


class BatchedMixture(BatchedLearner):
    """A mixture; the first D sums are its learners' regrets, the others its own regrets to each learner."""

    def __init__(self, learner: Mixture, device: torch.device) -> None:
        self.num_drafters = learner.num_drafters
        self.num_learners = len(learner.discounts)
        self.num_totals, self.num_played = 2 * self.num_learners, self.num_learners + 1
        self.discounts = [*learner.discounts.tolist(), *[1.0] * self.num_learners]

    def learner_probs(self, totals: Tensor) -> Tensor:
        """Probabilities of each learner, [B, D, N]."""
        regrets = totals[:, : self.num_learners]
        return normalhedge_probs(regrets.flatten(0, 1)).view_as(regrets)

    def probs(self, totals: Tensor, rounds: Tensor) -> Tensor:
        """The learners' probabilities, weighted."""
        weights = normalhedge_probs(totals[:, self.num_learners :, 0])
        return (weights[..., None] * self.learner_probs(totals)).sum(dim=1)

    def played(self, totals: Tensor, probs: Tensor) -> Tensor:
        """Distributions of each learner and of the choice."""
        return torch.cat((self.learner_probs(totals), probs[:, None]), dim=1).flatten(1)

    def summands(self, losses: Tensor, gaps: Tensor, begins: Tensor) -> Tensor:
        """See `Mixture.advance`."""
        learners, played = losses[:, :-1], losses[:, -1:]
        excess = (played - learners) * begins
        regrets = learners[:, :, None] - gaps[:, None]
        terms = torch.cat((regrets, excess[:, :, None].expand_as(regrets)), dim=1)
        return torch.where(terms.abs() < SLACK, 0.0, terms)


class BatchedAdaNormalHedge(BatchedLearner):
    """AdaNormalHedge; it also sums |r|."""

    num_totals = 2

    def of_regrets(self, regrets: Tensor) -> Tensor:
        """Regrets and their absolute values."""
        return torch.stack((regrets, regrets.abs()), dim=1)

    def probs(self, totals: Tensor, rounds: Tensor) -> Tensor:
        """See `adanormalhedge_probs`."""
        return adanormalhedge_probs(totals[:, 0], totals[:, 1])


class BatchedSquint(BatchedLearner):
    """Squint; it also sums r^2."""

    num_totals = 2

    def __init__(self, learner: Squint, device: torch.device) -> None:
        super().__init__(learner, device)
        self.prior = learner.prior
        self.nodes, self.node_weights = (
            torch.tensor(values.tolist(), dtype=REAL, device=device) for values in (NODES, NODE_WEIGHTS)
        )

    def of_regrets(self, regrets: Tensor) -> Tensor:
        """Regrets and their squares."""
        return torch.stack((regrets, regrets.square()), dim=1)

    def probs(self, totals: Tensor, rounds: Tensor) -> Tensor:
        """See `squint_probs`."""
        return squint_probs(totals[:, 0], totals[:, 1], self.nodes, self.node_weights, self.prior)


BATCHED_LEARNERS: dict[type[Learner], type[BatchedLearner]] = {
    Hedge: BatchedHedge,
    NormalHedge: BatchedNormalHedge,
    AdaNormalHedge: BatchedAdaNormalHedge,
    Squint: BatchedSquint,
    FollowTheLeader: BatchedLearner,
    Mixture: BatchedMixture,
}


def batched_learner(learner: Learner, device: Any) -> BatchedLearner:
    """The learner of many requests with the options of `learner`."""
    return BATCHED_LEARNERS[type(learner)](learner, device)
