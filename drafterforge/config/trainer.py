"""Config of drafter training."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts, require_share
from drafterforge.config.fields import setting

LOSSES = ("cross_entropy", "reverse_kl", "tv", "lk_alpha", "lk_lambda")  # see drafters/eagle3/train/objectives.py


@dataclass(frozen=True)
class TrainerConfig:
    """Distillation: training-time test (TTT), optimiser, batches, validation."""

    ttt_steps: int = setting(
        7, "draft positions unrolled during training, as at decode time; not read by drafter=block"
    )
    val_ttt_steps: int | None = setting(None, "length of the drafted chains in validation; null: ttt_steps")
    loss: str = setting(
        "cross_entropy",
        "cross_entropy | reverse_kl | tv: 1 - acceptance rate | lk_alpha: -log of it | lk_lambda: KL, later tv",
    )
    lk_eta: float = setting(3.0, "lk_lambda: the share of KL is exp(-lk_eta * acceptance rate)")
    step_decay: float = setting(0.8, "loss weight of TTT step i is step_decay ** i")
    num_answers: int | None = setting(None, "number of training answers, each domain in proportion; null: all")
    max_steps: int = setting(400, "optimiser steps")
    tokens_per_batch: int = setting(2048, "packed tokens (prompt and answer) in one micro-batch")
    accumulate: int = setting(1, "micro-batches per optimiser step, shared out among all devices")
    lr: float = setting(1.0e-3, "peak learning rate of AdamW")
    min_lr_ratio: float = setting(0.05, "the cosine schedule ends at lr * min_lr_ratio")
    warmup_ratio: float = setting(0.03, "share of max_steps for warm-up")
    betas: list[float] = setting([0.9, 0.95], "betas of AdamW")
    weight_decay: float = setting(0.0, "weight decay of AdamW")
    grad_clip: float = setting(1.0, "largest gradient norm")
    devices: int | None = setting(
        None, "devices of each machine; null: the most GPUs among which trainer.accumulate can be shared, or the CPU"
    )
    num_nodes: int | None = setting(None, "machines; null: as many as torchrun or SLURM started")
    strategy: str = setting(
        "auto", "ddp | fsdp: shard the drafter, its gradients and its optimiser over the devices | auto: ddp"
    )
    precision: str = setting("auto", "bf16-mixed | 32-true | auto: bf16-mixed where it is faster")
    checkpoint_steps: bool = setting(True, "activation checkpointing: recompute each TTT step in the backward pass")
    loss_chunk: int = setting(128, "rows of logits in memory at once")
    val_every: int = setting(50, "optimiser steps between validations; the last step is validated, too")
    patience: int = setting(8, "stop after this many validations without a better accept length")
    log_every: int = setting(5, "optimiser steps between logged values")
    loggers: list[str] = setting(["csv", "tensorboard"], "any of csv, tensorboard, wandb, mlflow")
    project: str = setting("drafterforge", "project of wandb, experiment of mlflow")
    wandb_mode: str = setting("offline", "offline: beside the other logs, for `wandb sync` | online | disabled")
    mlflow_uri: str = setting("", "tracking server or database; empty: files beside the other logs")

    def __post_init__(self) -> None:
        require_counts(self, "trainer", "ttt_steps max_steps tokens_per_batch accumulate loss_chunk")
        require_counts(self, "trainer", "val_every patience log_every devices num_nodes")
        require_at_least("trainer.num_answers", self.num_answers, 1)
        require_at_least("trainer.val_ttt_steps", self.val_ttt_steps, 1)
        require_choice("trainer.loss", self.loss, LOSSES)
        require(self.lk_eta > 0, f"trainer.lk_eta must be > 0, got {self.lk_eta}")
        require(self.lr > 0, f"trainer.lr must be > 0, got {self.lr}")
        require(self.step_decay > 0, f"trainer.step_decay must be > 0, got {self.step_decay}")
        require_share("trainer.min_lr_ratio", self.min_lr_ratio)
        require_share("trainer.warmup_ratio", self.warmup_ratio)
        require_at_least("trainer.weight_decay", self.weight_decay, 0.0)
        require_at_least("trainer.grad_clip", self.grad_clip, 0.0)
        require(len(self.betas) == 2, f"trainer.betas must be two numbers, got {list(self.betas)}")
        for beta in self.betas:
            require(0.0 <= beta < 1.0, f"trainer.betas must lie in [0, 1), got {list(self.betas)}")
        require_choice("trainer.strategy", self.strategy, ("auto", "ddp", "fsdp"))
        require_choice("trainer.precision", self.precision, ("auto", "bf16-mixed", "32-true"))
        for name in self.loggers:
            require_choice("trainer.loggers", name, ("csv", "tensorboard", "wandb", "mlflow"))
        require_choice("trainer.wandb_mode", self.wandb_mode, ("offline", "online", "disabled"))
        require(bool(self.project), "trainer.project must be a name")

    def require_shares(self, num_devices: int) -> None:
        """Refuse a number of devices among which the micro-batches of a step cannot be shared equally."""
        accumulate, tokens = self.shared_step(num_devices)
        require(
            self.accumulate % num_devices == 0,
            f"{num_devices} devices cannot share the micro-batches of a step, trainer.accumulate={self.accumulate}; "
            f"type trainer.accumulate={accumulate}, and trainer.tokens_per_batch={tokens} to keep the tokens of a step",
        )

    def shared_step(self, num_devices: int) -> tuple[int, int]:
        """`accumulate` and `tokens_per_batch` with which so many devices share a step of as many tokens."""
        accumulate = -(-self.accumulate // num_devices) * num_devices
        return accumulate, max(1, self.tokens_per_batch * self.accumulate // accumulate)

    @property
    def validated_steps(self) -> int:
        """Length of the drafted chains in validation."""
        return self.val_ttt_steps or self.ttt_steps
