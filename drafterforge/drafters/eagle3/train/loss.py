"""The loss of all TTT steps against the target, with head and loss fused, in chunks of rows.

The forward pass also computes the gradient, so at most `chunk` rows of logits per step exist at once. The teacher's
distribution at a position is computed once for all steps, and all experts, that predict from it.
Axes: K experts that read the same batch, I steps, M slots, P teacher positions, H hidden, W draft vocabulary, C rows of
a chunk, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.train.objectives import CROSS_ENTROPY, Objective
from drafterforge.kernels.devices import autocast_device


@dataclass(frozen=True)
class Teacher:
    """The target's outputs at P positions."""

    states: Tensor  # final normed states, [P, H]
    head: Tensor  # rows of the target's head for the draft vocabulary, [W, H]
    argmax: Tensor  # most probable target id over the full vocabulary, [P]
    in_vocab: Tensor  # whether that id can be drafted, [P] bool


@dataclass(frozen=True)
class StepCounts:
    """Sums over slots, per step, [I].  Ratios are computed from the sums over all batches."""

    loss: Tensor  # summed over `weighted`
    weighted: Tensor  # slots in the loss: valid, with the target's argmax in the draft vocabulary
    valid: Tensor  # slots whose predicted token exists in the answer
    marginal: Tensor  # valid slots whose argmax is the target's
    joint: Tensor  # valid slots whose argmax is the target's at this and all earlier steps

    def __add__(self, counts: StepCounts) -> StepCounts:
        return StepCounts(*(getattr(self, name) + getattr(counts, name) for name in self.__dataclass_fields__))

    def split(self, steps: int) -> list[StepCounts]:
        """The counts of each expert."""
        columns = [getattr(self, name).split(steps) for name in self.__dataclass_fields__]
        return [StepCounts(*parts) for parts in zip(*columns, strict=True)]

    def map(self, function: Callable[[Tensor], Tensor]) -> StepCounts:
        """Apply a function to the table of all counts, [5, I] float64, which holds them exactly."""
        names = self.__dataclass_fields__
        table = function(torch.stack([getattr(self, name).double() for name in names]))
        return StepCounts(*(row.to(getattr(self, name).dtype) for name, row in zip(names, table, strict=True)))

    def accept_length(self) -> Tensor:
        """Mean accept length of a greedy chain of I steps on teacher-forced text, bonus included."""
        return 1 + (self.joint / self.valid.clamp(min=1)).sum()

    def mean_loss(self, step_decay: float) -> Tensor:
        """sum_i step_decay^i * (mean loss of step i)."""
        decay = step_decay ** torch.arange(self.loss.numel(), device=self.loss.device)
        return (decay * self.loss / self.weighted.clamp(min=1)).sum()


def valid_positions(slots: Tensor, chunk: int, device: torch.device) -> list[list[Tensor]]:
    """Of every chunk of teacher positions and every step, those with a slot, on the device; moved by one copy.

    slots: on the host, [I, P], see `ttt_loss`.
    """
    valid = slots >= 0
    counts = [part.sum(dim=1).tolist() for part in valid.split(chunk, dim=1)]
    by_chunk = [part.nonzero()[:, 1] + chunk * number for number, part in enumerate(valid.split(chunk, dim=1))]
    parts = torch.cat(by_chunk).to(device).split([count for row in counts for count in row])
    steps = slots.shape[0]
    return [list(parts[number * steps : (number + 1) * steps]) for number in range(len(counts))]


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, *rest):
        # `_forward` chooses the dtype of each operation
        with torch.autocast(autocast_device(hidden.device), enabled=False):
            return _ChunkedLoss._forward(ctx, hidden, *rest)

    @staticmethod
    def _forward(
        ctx,
        hidden,
        weight,
        teacher,
        slots,
        step_decay,
        token_ids,
        chunk,
        objective,
        slot_weights,
        num_experts,
        *additions,
    ):
        rows, num_slots, _ = hidden.shape
        steps = rows // num_experts
        slots = slots.repeat(num_experts, 1)
        device, dtype = hidden.device, hidden.dtype
        positions = valid_positions(slots, chunk, device) if slots.numel() else []
        by_slot = torch.zeros(rows, num_slots, dtype=torch.bool)
        step_index, position_index = (slots >= 0).nonzero().unbind(1)
        by_slot[step_index, slots[step_index, position_index]] = True
        by_slot, slots = by_slot.to(device), slots.to(device)
        valid = slots >= 0
        in_loss = valid & teacher.in_vocab
        weighted = in_loss.sum(dim=1)
        decay = step_decay ** torch.arange(steps, device=device, dtype=torch.float32).repeat(num_experts)
        counts = weighted if slot_weights is None else torch.full_like(weighted, num_slots)
        scale = decay / counts.clamp(min=1)
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if need_weight else None
        grad_additions = [torch.zeros_like(addition, dtype=torch.float32) for addition in additions]
        losses = torch.zeros(rows, device=device)
        correct = torch.zeros(rows, num_slots, dtype=torch.bool, device=device)
        cast = weight.to(dtype)
        downs, ups = ([part.to(dtype) for part in additions[side::2]] for side in (0, 1))
        head = teacher.head.to(dtype)
        for number, by_step in enumerate(positions):
            first = number * chunk
            part = slice(first, first + chunk)
            p = (teacher.states[part].to(dtype) @ head.T).float().softmax(dim=-1)  # [C, W]
            gradients, inputs = [], []
            for step, at in enumerate(by_step):
                if not at.numel():
                    continue
                predicting = slots[step, at]
                x = hidden[step, predicting]
                logits = x @ cast.T  # [C', W]
                if additions:
                    down, up = downs[step // steps], ups[step // steps]
                    low = x @ down.T  # [C', r]
                    logits = logits.addmm_(low, up.T)
                logits = logits.float()
                target = p if at.numel() == p.shape[0] else p[at - first]
                included = in_loss[step, at].float()
                if slot_weights is not None:
                    included = included * slot_weights[step, predicting]
                correct[step, predicting] = token_ids[logits.argmax(dim=-1)] == teacher.argmax[at]
                by_row, d = objective(target, logits, any(ctx.needs_input_grad))
                losses[step] += (by_row * included).sum()
                if not any(ctx.needs_input_grad):
                    continue
                d = d.mul_((included * scale[step])[:, None]).to(dtype)
                if additions:
                    grad_low = d @ up
                    grad_down, grad_up = grad_additions[step // steps * 2 :][:2]
                    grad_down += grad_low.T @ x
                    grad_up += d.T @ low
                if need_hidden:
                    grad_x = d @ cast
                    grad_hidden[step].index_add_(0, predicting, grad_x.addmm_(grad_low, down) if additions else grad_x)
                if need_weight:
                    gradients.append(d)
                    inputs.append(x)
            if gradients:
                d, x = torch.cat(gradients), torch.cat(inputs)
                if dtype == torch.float32:
                    grad_weight.addmm_(d.T, x)
                else:
                    grad_weight += d.T @ x
        ctx.save_for_backward(grad_hidden, grad_weight, *grad_additions)
        ctx.weight_dtype = weight.dtype
        loss = (losses * scale).sum()
        results = (losses, weighted, valid.sum(dim=1), correct, by_slot)
        ctx.mark_non_differentiable(*results)
        return loss, *results

    @staticmethod
    def backward(ctx, grad, *unused):
        grad_hidden, grad_weight, *grad_additions = ctx.saved_tensors
        return (
            None if grad_hidden is None else grad_hidden * grad,
            None if grad_weight is None else (grad_weight * grad).to(ctx.weight_dtype),
            *[None] * 8,
            *[addition * grad for addition in grad_additions],
        )


def ttt_loss(
    hidden: Tensor,
    weight: Tensor,
    teacher: Teacher,
    slots: Tensor,
    step_decay: float,
    token_ids: Tensor,
    chunk: int,
    objective: Objective = CROSS_ENTROPY,
    additions: Sequence[LowRank] = (),
    slot_weights: Tensor | None = None,
) -> tuple[Tensor, StepCounts]:
    """Scalar loss sum_i step_decay^i * mean_i, and the counts; of several experts, the sum, and the counts of each.

    hidden: normed layer outputs, [I, M, H]; of K experts that read the same batch, [K * I, M, H].  weight: the draft
    head, [W, H].  slots: slot that predicts from teacher position p at step i, or -1, [I, P], on the host.  token_ids:
    target id of every draft id, [W].  additions: of each expert, to the head; empty: of one drafter without any.
    slot_weights: of each prediction, [K * I, M]; each step's sum is then divided by M.  None: all 1.
    """
    count = max(1, len(additions))
    parts = [part for addition in additions for part in (addition.down, addition.up)]
    settings = step_decay, token_ids, chunk, objective, slot_weights, count
    results = _ChunkedLoss.apply(hidden, weight, teacher, slots, *settings, *parts)
    loss, losses, weighted, valid, correct, by_slot = results
    joint = correct.unflatten(0, (count, -1)).long().cumprod(dim=1).flatten(0, 1).bool() & by_slot
    return loss, StepCounts(losses, weighted, valid, correct.sum(dim=1), joint.sum(dim=1))


def next_token_loss(
    hidden: Tensor,
    weight: Tensor,
    teacher: Teacher,
    token_ids: Tensor,
    chunk: int,
    objective: Objective = CROSS_ENTROPY,
) -> tuple[Tensor, Tensor]:
    """Mean loss over the teacher positions, and whether each argmax is the target's, [P] bool.

    hidden: normed states at the teacher positions, [P, H].  weight: the head, [W, H].  token_ids: as in `ttt_loss`.
    """
    slots = torch.arange(hidden.shape[0])[None]
    results = _ChunkedLoss.apply(hidden[None], weight, teacher, slots, 1.0, token_ids, chunk, objective, None, 1)
    return results[0], results[4][0]


def chain_counts(loss: Tensor, correct: Tensor, slots: Tensor) -> StepCounts:
    """Counts of a greedy chain of a model that reads tokens only: step i is its prediction i positions further on.

    loss: mean over the teacher positions.  correct: [P] bool.  slots: [I, P], see `ttt_loss`.
    """
    (steps, count), device = slots.shape, correct.device
    step_index, position_index = (slots >= 0).nonzero().unbind(1)
    slot_index = slots[step_index, position_index]
    step_index, position_index, slot_index = torch.stack((step_index, position_index, slot_index)).to(device)
    by_slot = torch.zeros(steps, count, dtype=torch.bool, device=device)  # no more slots than positions
    by_slot[step_index, slot_index] = correct[position_index]
    valid = slots.to(device) >= 0
    first = torch.arange(steps, device=device) == 0  # the loss counts each position once, at step 0
    marginal = (valid & correct).sum(dim=1)
    joint = by_slot.long().cumprod(dim=0).sum(dim=1)
    return StepCounts(loss * count * first, count * first, valid.sum(dim=1), marginal, joint)
