"""How far the target would accept each position of a block, and what follows: D-PACE's weights, the confidence's loss.

p is normalised over the draft vocabulary; DSpark takes all tokens.
Axes: I drafted positions, M anchors, P teacher positions, H hidden, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.train.loss import Teacher, valid_positions


class Acceptance(NamedTuple):
    """Of every position of every block, [I, M]; 0 where the answer has ended."""

    valid: Tensor  # whether the position is within the answer, bool
    token: Tensor  # the drafter's probability of the target's most probable token; 0 outside the draft vocabulary
    overlap: Tensor  # sum min(p, q) over the draft vocabulary; 0 where that token is outside


@torch.no_grad()
def acceptance_of(
    outputs: Tensor, weight: Tensor, additions: Sequence[LowRank], teacher: Teacher, slots: Tensor, chunk: int
) -> Acceptance:
    """The acceptance of positions with these outputs [I, M, H]; other arguments as for `ttt_loss`, of one drafter."""
    valid = torch.zeros(outputs.shape[:2], dtype=torch.bool, device=outputs.device)
    token, overlap = (torch.zeros(outputs.shape[:2], device=outputs.device) for _ in range(2))
    positions, slots = valid_positions(slots, chunk, outputs.device), slots.to(outputs.device)
    for number, by_step in enumerate(positions):
        first = number * chunk
        states = teacher.states[first : first + chunk].to(teacher.head.dtype)
        p = (states @ teacher.head.T).float().softmax(dim=-1)
        for step, at in enumerate(by_step):
            predicting = slots[step, at]
            x = outputs[step, predicting]
            logits = x @ weight.to(x.dtype).T
            for low in additions:
                logits = logits + (x @ low.down.to(x.dtype).T) @ low.up.to(x.dtype).T
            q = logits.float().softmax(dim=-1)
            valid[step, predicting] = True
            target, drafted = p[at - first], teacher.in_vocab[at]
            token[step, predicting] = q.gather(1, target.argmax(dim=-1, keepdim=True))[:, 0] * drafted
            overlap[step, predicting] = torch.minimum(target, q).sum(dim=-1) * drafted
    return Acceptance(valid, token, overlap)


def dpace_weights(acceptance: Acceptance, alpha: float) -> Tensor:
    """The weights [I, M] of D-PACE (arXiv 2605.18810, equations 7 and 8).

    With q_i the probability of the target's token, w_j = sum_{m >= j} prod_{i <= m} ((1 - alpha) q_i + alpha): how much
    the expected accept length depends on position j.
    """
    reached = ((1 - alpha) * acceptance.token + alpha).where(acceptance.valid, 0.0).cumprod(dim=0)
    return reached.flip(0).cumsum(dim=0).flip(0)


def confidence_loss(logits: Tensor, acceptance: Acceptance, step_decay: float) -> Tensor:
    """sum_i step_decay^i * (mean binary cross-entropy of position i) of confidences with these logits [I, M]."""
    losses = F.binary_cross_entropy_with_logits(logits.float(), acceptance.overlap, reduction="none")
    counts = acceptance.valid.sum(dim=1).clamp(min=1)
    decay = step_decay ** torch.arange(len(logits), device=logits.device)
    return (decay * (losses * acceptance.valid).sum(dim=1) / counts).sum()
