"""The Lightning module that distils a drafter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from lightning import LightningModule
from torch import Tensor

from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.train.lora import addition_of, base_of
from drafterforge.drafters.eagle3.train.loss import StepCounts, Teacher, ttt_loss
from drafterforge.drafters.eagle3.train.objectives import Objective
from drafterforge.drafters.eagle3.train.ttt import Layout, PackedBatch, lay_out, unroll


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
        layout = lay_out(batch, self.depth)
        outputs = unroll(self.drafter, batch, layout, self.depth, recompute=self.recompute)
        loss, (counts,) = self.losses_of([self], outputs, batch, layout)
        return loss, counts

    @property
    def depth(self) -> int:
        """Positions that are unrolled now."""
        return self.config.ttt_steps if self.training else self.config.validated_steps

    @property
    def recompute(self) -> bool:
        """Whether steps are recomputed in the backward pass."""
        return self.config.checkpoint_steps and self.training

    def losses_of(
        self, modules: Sequence[DistillModule], outputs: Tensor, batch: PackedBatch, layout: Layout
    ) -> tuple[Tensor, list[StepCounts]]:
        """The sum of the losses of modules with this one's head, and the counts of each.

        modules: of drafters that read the batch.  outputs: normed, of all of them, [K * I, M, H].
        """
        drafter, positions = self.drafter, layout.teacher_positions
        argmax = batch.argmax[positions]
        teacher = Teacher(batch.states[positions], self.head, argmax, drafter.t2d[argmax])
        weight = base_of(drafter.lm_head).weight
        additions = [addition_of(module.drafter.lm_head) for module in modules]
        if len(modules) > 1 or additions[0]:
            absent = LowRank(weight.new_zeros(0, weight.shape[1]), weight.new_zeros(weight.shape[0], 0))
            additions = [addition or absent for addition in additions]
        else:
            additions = []
        loss, counts = ttt_loss(
            outputs,
            weight,
            teacher,
            layout.slots,
            self.config.step_decay,
            drafter.token_ids,
            self.config.loss_chunk,
            self.objective,
            additions,
        )
        return loss, counts.split(layout.slots.shape[0])

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
        loss = self.trainer.strategy.reduce(self.pop_loss(), reduce_op="mean")
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.log_dict(figures("train", loss, self.pop_counts()) | {"train/lr": rate})

    def add(self, counts: StepCounts) -> None:
        """Add a batch's counts."""
        self.counts = counts if self.counts is None else self.counts + counts

    def pop_loss(self) -> Tensor:
        """The mean loss of this device's micro-batches since the last call."""
        loss, self.losses = torch.stack(self.losses).mean(), []
        return loss

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
        self.log_dict(figures("val", counts.mean_loss(self.config.step_decay), counts))

    def configure_optimizers(self) -> dict:
        return optimiser([self])


def figures(split: str, loss: Tensor, counts: StepCounts) -> dict[str, Tensor]:
    """Loss, accept length and the accuracy of every step, by their keys in the log."""
    valid = counts.valid.clamp(min=1)
    table = {f"{split}/loss": loss, f"{split}/accept_length": counts.accept_length()}
    for step, (marginal, joint) in enumerate(zip(counts.marginal / valid, counts.joint / valid, strict=True)):
        table |= {f"{split}/accuracy_{step}": marginal, f"{split}/joint_accuracy_{step}": joint}
    return table


def optimiser(modules: Sequence[DistillModule]) -> dict:
    """AdamW with linear warm-up, then cosine decay to lr * min_lr_ratio; a group of parameters for each module."""

    def group(module: DistillModule) -> dict:
        config, trained = module.config, [parameter for parameter in module.parameters() if parameter.requires_grad]
        betas = tuple(config.betas)
        return {"params": trained, "lr": config.lr, "betas": betas, "weight_decay": config.weight_decay}

    optimizer = torch.optim.AdamW([group(module) for module in modules])
    factors = [partial(lr_factor, module.config) for module in modules]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def lr_factor(config: TrainerConfig, step: int) -> float:
    """Learning rate of a step, as a share of `config.lr`."""
    warmup = max(1, round(config.warmup_ratio * config.max_steps))
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, config.max_steps - warmup))
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
