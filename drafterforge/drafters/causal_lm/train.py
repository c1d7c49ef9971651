"""Distillation of a small causal LM: next-token prediction with the target's soft labels."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.base import TrainedDrafter, TrainingJob
from drafterforge.drafters.causal_lm.model import (
    CausalLMDrafter,
    copy_embeddings,
    copy_layers,
    new_model,
    open_model,
    small_config,
)
from drafterforge.drafters.eagle3.init import TargetWeights
from drafterforge.drafters.eagle3.train.loss import StepCounts, Teacher, chain_counts, next_token_loss
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out
from drafterforge.errors import ConfigError
from drafterforge.kernels.devices import autocast_device
from drafterforge.targets.lean import lean_obstacle

KIND = "causal_lm"


class CausalLMModule(DistillModule):
    """Soft labels at every position whose next token belongs to an answer.

    Validation is that of EAGLE-3 drafters: the accept length of a greedy chain on teacher-forced text.
    """

    def __init__(self, drafter: CausalLMDrafter, target_head: Tensor, config: TrainerConfig) -> None:
        super().__init__(drafter, target_head, config)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, StepCounts]:
        drafter, config = self.drafter, self.config
        layout = lay_out(batch, config.ttt_steps if self.training else config.validated_steps)
        positions = layout.teacher_positions
        argmax = batch.argmax[positions]
        teacher = Teacher(batch.states[positions], self.head, argmax, torch.ones_like(argmax, dtype=torch.bool))
        states = drafter(batch.tokens, batch.positions, batch.lengths)[positions]
        device_type = autocast_device(states.device)
        if torch.is_autocast_enabled(device_type):  # norms return float32, in which the loss would be computed
            states = states.to(torch.get_autocast_dtype(device_type))
        head, ids = drafter.head_weight, drafter.token_ids
        loss, correct = next_token_loss(states, head, teacher, ids, config.loss_chunk, self.objective)
        return loss, chain_counts(loss.detach(), correct, layout.slots)


def recorded_settings(job: TrainingJob) -> dict[str, Any]:
    drafter = {"kind": KIND, "init": job.config.init, "causal_lm": asdict(job.config.causal_lm)}
    drafter["parent"] = job.parent.manifest.digest if job.parent else None
    return {"drafter": drafter, "domain": job.domain, "answers": job.answers.digest, **job.input_settings}


def train(job: TrainingJob) -> TrainedDrafter:
    drafter = start_drafter(job)
    distilled = job.distil(CausalLMModule(drafter.to(job.target.device), job.target.head_weight, job.trainer))
    num_val = len(job.answers.rows("val", job.answers_domain))
    metrics = {
        "val_accept_length": distilled.best_score,
        "val_prompts": num_val,
        "best_step": distilled.best_step,
        "steps": distilled.curve[-1]["step"],
    }

    def save(folder: Path) -> None:
        drafter.save(folder, job.target.tokenizer)

    return TrainedDrafter(save, distilled.summary(job.trainer.validated_steps, num_val), metrics, distilled.curve)


def start_drafter(job: TrainingJob) -> CausalLMDrafter:
    """An fp32 model to train: the parent, or a new one with the target's embeddings if the widths match."""
    init, size, target, config = job.config.init, job.config.causal_lm, job.target, job.target.config
    if job.parent is not None:
        model = open_model(job.parent.folder)
        return CausalLMDrafter(model, size.train_embeddings or model.config.hidden_size != config.hidden_size)
    if obstacle := lean_obstacle(config):
        raise ConfigError(f"drafter=causal_lm makes a smaller model of the target's family, but {obstacle}")
    torch.manual_seed(job.seed)
    model = new_model(small_config(config, size))
    if init == "warm":
        copy_layers(model, TargetWeights(target.folder), config)
    shares_embeddings = copy_embeddings(model, target.backbone.embedding, target.head_weight)
    if not shares_embeddings and size.train_embeddings is False:
        raise ConfigError(
            f"drafter.causal_lm.train_embeddings=false needs the target's embeddings, whose width is "
            f"{config.hidden_size}, not {size.hidden_size}; type drafter.causal_lm.train_embeddings=true"
        )
    return CausalLMDrafter(model, bool(size.train_embeddings) or not shares_embeddings)
