"""How a drafter is trained."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts, require_share
from drafterforge.config.fields import setting


@dataclass(frozen=True)
class TrainerConfig:
    """Distillation: training-time test, optimiser, batches, validation."""

    ttt_steps: int = setting(7, "draft positions unrolled during training, as at decode time")
    val_ttt_steps: int | None = setting(None, "drafted tokens of the chain that validation measures; null: ttt_steps")
    step_decay: float = setting(0.8, "weight of TTT step i is step_decay ** i")
    num_answers: int | None = setting(
        None, "learn from so many training answers only, of every domain its share; null: all"
    )
    max_steps: int = setting(400, "optimiser steps")
    tokens_per_batch: int = setting(2048, "packed tokens (prompt and answer) in one micro-batch")
    accumulate: int = setting(1, "micro-batches per optimiser step")
    lr: float = setting(1.0e-3, "peak learning rate of AdamW")
    min_lr_ratio: float = setting(0.05, "cosine ends at lr * min_lr_ratio")
    warmup_ratio: float = setting(0.03, "share of max_steps with a rising learning rate")
    betas: list[float] = setting([0.9, 0.95], "AdamW's")
    weight_decay: float = setting(0.0, "AdamW's")
    grad_clip: float = setting(1.0, "largest gradient norm")
    precision: str = setting("auto", "bf16-mixed | 32-true | auto: bf16-mixed on tensor cores and AMX")
    checkpoint_steps: bool = setting(True, "recompute each TTT step backwards instead of storing it")
    loss_chunk: int = setting(128, "rows of logits alive at once")
    val_every: int = setting(50, "optimiser steps between validations")
    patience: int = setting(8, "validations without a better accept length before stopping")
    log_every: int = setting(5, "optimiser steps between logged values")
    loggers: list[str] = setting(["csv", "tensorboard"], "of csv, tensorboard, wandb, mlflow")
    project: str = setting("drafterforge", "project of wandb, experiment of mlflow")
    wandb_mode: str = setting("offline", "offline: beside the other logs, for `wandb sync` | online | disabled")
    mlflow_uri: str = setting("", "tracking server or database; empty: files beside the other logs")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_counts(self, "trainer", "ttt_steps max_steps tokens_per_batch accumulate loss_chunk")
        require_counts(self, "trainer", "val_every patience log_every")
        require_at_least("trainer.num_answers", self.num_answers, 1)
        require_at_least("trainer.val_ttt_steps", self.val_ttt_steps, 1)
        require(self.lr > 0, f"trainer.lr must be > 0, got {self.lr}")
        require(self.step_decay > 0, f"trainer.step_decay must be > 0, got {self.step_decay}")
        require_share("trainer.min_lr_ratio", self.min_lr_ratio)
        require_share("trainer.warmup_ratio", self.warmup_ratio)
        require_at_least("trainer.weight_decay", self.weight_decay, 0.0)
        require_at_least("trainer.grad_clip", self.grad_clip, 0.0)
        require(len(self.betas) == 2, f"trainer.betas must be two numbers, got {list(self.betas)}")
        for beta in self.betas:
            require(0.0 <= beta < 1.0, f"trainer.betas must lie in [0, 1), got {list(self.betas)}")
        require_choice("trainer.precision", self.precision, ("auto", "bf16-mixed", "32-true"))
        for name in self.loggers:
            require_choice("trainer.loggers", name, ("csv", "tensorboard", "wandb", "mlflow"))
        require_choice("trainer.wandb_mode", self.wandb_mode, ("offline", "online", "disabled"))
        require(bool(self.project), "trainer.project must be a name")

    @property
    def validated_steps(self) -> int:
        """Drafted tokens of the chain that validation measures."""
        return self.val_ttt_steps or self.ttt_steps
