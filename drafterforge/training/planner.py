"""Trains the planner: a network that minimises expected seconds by exact gradients over all actions.

Replay knows the outcome of every action at every root, so nothing is sampled: each round evaluates the policy by
dynamic programming and lowers the expected seconds along the roots it visits.
Axes: R roots, A actions, O observation.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drafterforge.replay.planner import policy_values, visits
from drafterforge.replay.scheduler_actions import logits_of
from drafterforge.replay.table import OutcomeTable, play
from drafterforge.schedulers.nets import ActorCritic


@dataclass(frozen=True)
class PlannerConfig:
    """How the planner is trained."""

    rounds: int = 60  # evaluations of the policy
    patience: int = 12  # rounds without a better validation before it ends
    batch_size: int = 256  # roots per optimiser step
    lr: float = 1e-3
    weight_decay: float = 0.1
    entropy: float = 0.02  # weight of the entropy, in units of a mean cycle
    validation: float = 0.2  # share of the answers that choose the round


def train_planner(
    net: ActorCritic,
    observations: np.ndarray,
    table: OutcomeTable,
    config: PlannerConfig,
    seed: int,
    advance: Callable[[str], None] = lambda _: None,
) -> list[dict[str, float]]:
    """Train the actor on observations [R, O]; it ends with the weights of the best validation.  Returns the curve."""
    draw = np.random.default_rng(seed)
    held = np.zeros(table.num_answers, dtype=bool)
    held[draw.permutation(table.num_answers)[: round(config.validation * table.num_answers)]] = True
    rows = np.flatnonzero(~held[table.answer_of])
    seen = torch.from_numpy(observations)
    net.normalise_by(seen[rows])
    optimizer = torch.optim.AdamW(net.actor.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    unit = float(np.median(table.seconds))
    curve, best, waited = [], (float("-inf"), deepcopy(net.state_dict())), 0
    for number in range(config.rounds):
        logits = logits_of(net, observations)
        probs = _softmax(logits)
        values, action_values = policy_values(table, probs)
        advantages = torch.from_numpy(((action_values - values[:, None]) / unit).astype(np.float32))
        weights = torch.from_numpy(visits(table, probs).astype(np.float32))
        for batch in _batches(draw.permutation(rows), config.batch_size):
            loss = planner_loss(net.logits(seen[batch]), advantages[batch], weights[batch], config.entropy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        actions = logits_of(net, observations).argmax(axis=1)
        replayed = play(table, lambda roots, actions=actions: actions[roots])
        rates = {
            "train/tokens_per_s": float(replayed.tokens[~held].sum() / replayed.seconds[~held].sum()),
            "val/tokens_per_s": float(replayed.tokens[held].sum() / max(replayed.seconds[held].sum(), 1e-12)),
        }
        curve.append({"round": number + 1, **rates, "actions": len(np.unique(actions))})
        score = rates["val/tokens_per_s"] if held.any() else rates["train/tokens_per_s"]
        advance(f"{score:.2f} tokens/s")
        if score > best[0]:
            best, waited = (score, deepcopy(net.state_dict())), 0
        else:
            waited += 1
            if waited >= config.patience:
                break
    net.load_state_dict(best[1])
    return curve


def planner_loss(logits: Tensor, advantages: Tensor, weights: Tensor, entropy: float) -> Tensor:
    """Expected seconds: advantages [n, A] under the policy, weighted by how often each root is visited, [n]."""
    probs, logp = logits.softmax(dim=1), logits.log_softmax(dim=1)
    expected = (probs * advantages).sum(dim=1)
    spread = -(probs * logp).sum(dim=1)
    return (weights * (expected - entropy * spread)).mean()


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _batches(rows: np.ndarray, size: int) -> list[Tensor]:
    return list(torch.from_numpy(rows).split(size))
