"""Seconds of the steps and validations of a short training, from which `plan` estimates a long one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from lightning import Callback, LightningModule, Trainer

from drafterforge.drafters.eagle3.train.ttt import PackedBatch
from drafterforge.kernels import gpu


@dataclass(frozen=True)
class Timed:
    """Some work: its packed tokens and its seconds."""

    tokens: int
    seconds: float


class StepTimes(Callback):
    """Times every step with the reading of its batch, and every validation with the saving after it."""

    def __init__(self) -> None:
        self.steps: list[Timed] = []
        self.validations: list[Timed] = []
        self.num_trained = 0  # weights
        self.began = 0.0
        self.validated: int | None = None  # tokens of the validation under way

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Count the trained weights and start the clock."""
        self.num_trained = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
        self.began = time.perf_counter()

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, *args: Any) -> None:
        """End a validation."""
        self._end_validation()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: PackedBatch, index: int
    ) -> None:
        """Record a step."""
        gpu.synchronize(module.device)
        self.steps.append(Timed(batch.tokens.numel(), self._lap()))

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Begin a validation; one before the first step is of the initial weights and as long."""
        self.validated = 0
        if trainer.sanity_checking:
            self.began = time.perf_counter()

    def on_validation_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: PackedBatch, *args: Any
    ) -> None:
        """Count the tokens of a batch."""
        gpu.synchronize(module.device)
        self.validated = (self.validated or 0) + batch.tokens.numel()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """End the last validation."""
        self._end_validation()

    def _end_validation(self) -> None:
        if self.validated:
            self.validations.append(Timed(self.validated, self._lap()))
        self.validated = None

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self.began = now - self.began, now
        return seconds
