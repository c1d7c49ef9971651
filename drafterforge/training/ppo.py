"""Proximal policy optimisation as functions of tensors (Schulman et al., arXiv 1707.06347, 1506.02438).

Axes: T steps of a rollout, E environments, B decisions of a minibatch, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class PPOTerms:
    """The parts of a loss and how far the policy has moved, each a detached scalar."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor

    @classmethod
    def mean(cls, terms: list[PPOTerms]) -> PPOTerms:
        """Each term's mean over minibatches."""
        return cls(**{f.name: torch.stack([getattr(term, f.name) for term in terms]).mean() for f in fields(cls)})


def gae(
    rewards: Tensor, values: Tensor, last_values: Tensor, dones: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and the returns they imply, each [T, E].

    rewards, values: [T, E], of each step and of the state it was taken in.  last_values: [E], of the state after the
    last step.  dones: bool [T, E], whether the step ended its episode, which stops the recursion.
    """
    continues = (~dones).to(values.dtype)
    next_values = torch.cat((values[1:], last_values[None]))
    deltas = rewards + gamma * continues * next_values - values
    decay = gamma * lam * continues
    advantages = torch.empty_like(deltas)
    advantage = torch.zeros_like(last_values)
    for step in range(len(deltas) - 1, -1, -1):
        advantage = deltas[step] + decay[step] * advantage
        advantages[step] = advantage
    return advantages, advantages + values


def categorical_entropy(log_probs: Tensor) -> Tensor:
    """Entropy [B] of log-probabilities [B, A]; an action of -inf adds nothing to it or to its gradient."""
    finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # 0 x inf would be nan
    return -(log_probs.exp() * finite).sum(dim=-1)


def log_probs_of(logits: Tensor, actions: Tensor) -> Tensor:
    """Log-probability [B] of each of actions [B] under logits [B, A]."""
    return logits.log_softmax(dim=-1).gather(-1, actions[:, None]).squeeze(-1)


def standardised(advantages: Tensor) -> Tensor:
    """Advantages [B] with mean 0 and deviation 1; a single one stays as it is."""
    if advantages.numel() < 2:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def ppo_loss(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
    *,
    clip: float,
    value_weight: float,
    entropy_weight: float,
) -> tuple[Tensor, PPOTerms]:
    """Clipped surrogate + value_weight x squared error of the value - entropy_weight x entropy, and its terms.

    logits: [B, A], -inf where an action is forbidden.  values: [B], in the units of `returns`.  The rest: [B], as the
    rollout had them.
    """
    log_probs = logits.log_softmax(dim=-1)
    log_ratio = log_probs.gather(-1, actions[:, None]).squeeze(-1) - old_log_probs
    ratio = log_ratio.exp()
    policy_loss = -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()
    value_loss = (values - returns).square().mean()
    entropy = categorical_entropy(log_probs).mean()
    loss = policy_loss + value_weight * value_loss - entropy_weight * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()  # unbiased and never negative
        clip_fraction = ((ratio - 1).abs() > clip).to(ratio.dtype).mean()
    return loss, PPOTerms(policy_loss.detach(), value_loss.detach(), entropy.detach(), approx_kl, clip_fraction)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one; 0 of constant returns."""
    variance = returns.var(correction=0)
    return torch.where(variance > 0, 1 - (returns - values).var(correction=0) / variance, torch.zeros_like(variance))
