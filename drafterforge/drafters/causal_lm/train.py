"""The Lightning module that distils a small causal LM: one step of prediction, from the text alone."""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.causal_lm.model import CausalLMDrafter
from drafterforge.drafters.eagle3.train.loss import StepCounts, Teacher, chain_counts, next_token_loss
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out


class SpecialistModule(DistillModule):
    """Soft targets at every position whose next token belongs to an answer.

    It is validated as an EAGLE-3 drafter is: the accept length of a greedy chain on teacher-forced text.
    """

    def __init__(self, drafter: CausalLMDrafter, target_head: Tensor, config: TrainerConfig) -> None:
        super().__init__(drafter, target_head, config)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, StepCounts]:
        """Loss and counts of a batch."""
        drafter, config = self.drafter, self.config
        layout = lay_out(batch, config.ttt_steps if self.training else config.validated_steps)
        chosen = layout.teacher_positions
        argmax = batch.argmax[chosen]
        teacher = Teacher(batch.states[chosen], self.head, argmax, torch.ones_like(argmax, dtype=torch.bool))
        states = drafter(batch.tokens, batch.positions, batch.lengths)[chosen]
        if torch.is_autocast_enabled(states.device.type):  # norms give float32, which the loss would compute in
            states = states.to(torch.get_autocast_dtype(states.device.type))
        loss, correct = next_token_loss(states, drafter.head_weight, teacher, drafter.token_ids, config.loss_chunk)
        return loss, chain_counts(loss.detach(), correct, layout.slots)
