"""The Lightning module that distils a drafter."""

from __future__ import annotations

import math

import torch
from lightning import LightningModule
from torch import Tensor

from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.train.lora import effective_weight
from drafterforge.drafters.eagle3.train.loss import StepCounts, Teacher, ttt_loss
from drafterforge.drafters.eagle3.train.objectives import Objective
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out, unroll


class DistillModule(LightningModule):
    """Training-time test with soft labels; validates the accept length of a greedy chain on teacher-forced text."""

    def __init__(self, drafter: Eagle3Drafter, target_head: Tensor, config: TrainerConfig) -> None:
        """target_head: [V, H]; only rows of the draft vocabulary are kept."""
        super().__init__()
        self.drafter, self.config = drafter, config
        self.objective = Objective(config.loss, config.lk_eta)
        self.register_buffer("head", target_head[drafter.token_ids.to(target_head.device)].clone(), persistent=False)
        self.counts: StepCounts | None = None  # of the optimiser step or validation under way, on this device
        self.losses: list[Tensor] = []  # of the micro-batches of the optimiser step under way

    def forward(self, batch: PackedBatch) -> tuple[Tensor, StepCounts]:
        drafter, config = self.drafter, self.config
        depth = config.ttt_steps if self.training else config.validated_steps
        layout = lay_out(batch, depth)
        outputs = unroll(
            drafter,
            batch,
            layout,
            depth,
            recompute=config.checkpoint_steps and self.training,
        )
        positions = layout.teacher_positions
        argmax = batch.argmax[positions]
        teacher = Teacher(batch.states[positions], self.head, argmax, drafter.t2d[argmax])
        return ttt_loss(
            outputs,
            effective_weight(drafter.lm_head),
            teacher,
            layout.slots,
            config.step_decay,
            drafter.token_ids,
            config.loss_chunk,
            self.objective,
        )

    def transfer_batch_to_device(self, batch: PackedBatch, device: torch.device, dataloader_idx: int) -> PackedBatch:
        return batch.to(device)

    def training_step(self, batch: PackedBatch, index: int) -> Tensor:
        loss, counts = self(batch)
        self.losses.append(loss.detach())
        self.add(counts)
        if (index + 1) % self.trainer.accumulate_grad_batches == 0:
            self.log_step()
        return loss

    def log_step(self) -> None:
        """Log ratios over all micro-batches of an optimiser step, and their mean loss."""
        strategy = self.trainer.strategy
        counts, loss = self.pop_counts(), strategy.reduce(torch.stack(self.losses).mean(), reduce_op="mean")
        self.losses = []
        self.log("train/loss", loss)
        self.log("train/accept_length", counts.accept_length())
        self.log("train/lr", self.trainer.optimizers[0].param_groups[0]["lr"])
        for step, (marginal, joint) in enumerate(zip(*self._rates(counts), strict=True)):
            self.log(f"train/accuracy_{step}", marginal)
            self.log(f"train/joint_accuracy_{step}", joint)

    def add(self, counts: StepCounts) -> None:
        """Add a batch's counts."""
        self.counts = counts if self.counts is None else self.counts + counts

    def pop_counts(self) -> StepCounts:
        """The counts of all devices since the last call."""
        counts, self.counts = self.counts, None
        if self.trainer.world_size == 1:
            return counts
        return counts.map(lambda table: self.trainer.strategy.reduce(table, reduce_op="sum"))

    def on_validation_epoch_start(self) -> None:
        self.counts = None

    def validation_step(self, batch: PackedBatch, index: int) -> None:
        self.add(self(batch)[1])

    def on_validation_epoch_end(self) -> None:
        """Log ratios over the complete validation set."""
        counts = self.pop_counts()
        self.log("val/loss", counts.mean_loss(self.config.step_decay))
        self.log("val/accept_length", counts.accept_length())
        for step, (marginal, joint) in enumerate(zip(*self._rates(counts), strict=True)):
            self.log(f"val/accuracy_{step}", marginal)
            self.log(f"val/joint_accuracy_{step}", joint)

    @staticmethod
    def _rates(counts: StepCounts) -> tuple[Tensor, Tensor]:
        valid = counts.valid.clamp(min=1)
        return counts.marginal / valid, counts.joint / valid

    def configure_optimizers(self) -> dict:
        """AdamW with linear warm-up, then cosine decay to lr * min_lr_ratio."""
        config = self.config
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=config.lr, betas=tuple(config.betas), weight_decay=config.weight_decay
        )
        warmup = max(1, round(config.warmup_ratio * config.max_steps))

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            progress = min(1.0, (step - warmup) / max(1, config.max_steps - warmup))
            return config.min_lr_ratio + (1 - config.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }
