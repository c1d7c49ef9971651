"""The Lightning module that distils a block drafter.

Axes: I drafted positions, M anchors, P teacher positions, H hidden, W draft vocabulary, r Markov rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.train.acceptance import acceptance_of, confidence_loss, dpace_weights
from drafterforge.drafters.block.train.anchors import draft_blocks, lay_out_anchors
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.train.lora import addition_of, base_of
from drafterforge.drafters.eagle3.train.loss import StepCounts, Teacher, ttt_loss
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.train.ttt import Layout, PackedBatch


class BlockModule(DistillModule):
    """Soft labels at every position of the blocks below sampled anchors; a position's weight decays with its depth,
    or is D-PACE's.

    Validation is that of EAGLE-3 drafters: accept lengths of greedy chains on teacher-forced text, at all anchors.
    """

    def __init__(
        self,
        drafter: BlockDrafter,
        target_head: Tensor,
        config: TrainerConfig,
        anchors: int,
        seed: int = 0,
        dpace_alpha: float | None = None,
    ) -> None:
        """anchors: most of a sequence in a step.  seed: of their choice.  dpace_alpha: None: weights decay."""
        super().__init__(drafter, target_head, config)
        self.anchors, self.seed, self.dpace_alpha = anchors, seed, dpace_alpha

    @property
    def depth(self) -> int:
        """Drafted positions that count now."""
        drafted = self.drafter.spec.num_drafted
        return drafted if self.training else min(self.config.val_ttt_steps or drafted, drafted)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, StepCounts]:
        drafter, seed = self.drafter, self.seed * 1_000_003 + self.global_step
        layout = lay_out_anchors(batch, self.depth, self.anchors if self.training else None, seed)
        outputs = draft_blocks(drafter, batch, layout.rows)[: self.depth]
        head, additions = base_of(drafter.lm_head).weight, addition_of(drafter.lm_head)
        if drafter.spec.markov_rank:  # the states are those of the block and of the token before, side by side
            outputs = torch.cat((outputs, self._pairs(batch, layout)), dim=-1)
            head = torch.cat((head, drafter.markov_head.markov_w2.weight), dim=1)
            if additions:
                additions = LowRank(F.pad(additions.down, (0, drafter.spec.markov_rank)), additions.up)
        positions, config = layout.teacher_positions.to(batch.tokens.device), self.config
        argmax = batch.argmax[positions]
        teacher = Teacher(batch.states[positions], self.head, argmax, drafter.t2d[argmax])
        decay, ids, parts = config.step_decay, drafter.token_ids, [additions] if additions else []
        weights, extra = None, 0.0
        trains_confidence = drafter.spec.confidence and drafter.confidence_head.proj.weight.requires_grad
        if self.training and (self.dpace_alpha is not None or trains_confidence):
            acceptance = acceptance_of(outputs, head, parts, teacher, layout.slots, config.loss_chunk)
            if trains_confidence:  # from detached outputs, so that the head does not train the block
                logits = drafter.confidence_head.proj(outputs.detach())[..., 0]
                extra = confidence_loss(logits, acceptance, config.step_decay)
            if self.dpace_alpha is not None:
                decay, weights = 1.0, dpace_weights(acceptance, self.dpace_alpha)
        settings = decay, ids, config.loss_chunk, self.objective, parts, weights
        loss, counts = ttt_loss(outputs, head, teacher, layout.slots, *settings)
        return loss + extra, counts

    def _pairs(self, batch: PackedBatch, layout: Layout) -> Tensor:
        """What the Markov head reads at every drafted position, of the answer's own tokens, [I, M, r]."""
        before = (layout.rows + 1 + torch.arange(self.depth)[:, None]).clamp(max=batch.tokens.numel() - 1)
        return self.drafter.pairs(batch.tokens[before.to(batch.tokens.device)])
