"""What a study adds to a distillation: a clock of training alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from drafterforge.drafters.eagle3.train.ttt import PackedBatch

COUNTED = ("seconds", "cpu_seconds", "tokens", "answer_tokens")  # up to a validation


class StepClock(Callback):
    """Seconds and tokens of training up to every validation; validating, saving and starting up are not counted.

    Seconds of the processor, of all threads together, tell where other programs were in the way.  Its state is kept
    with the training's, so that a resumed run goes on counting.
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self.now, self.cpu = now, cpu
        self.began: tuple[float, float] | None = None  # None: while not training
        self.seconds, self.cpu_seconds, self.tokens, self.answer_tokens = 0.0, 0.0, 0, 0
        self.points: list[dict[str, float]] = []  # one for each validation

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from."""
        return {name: getattr(self, name) for name in (*COUNTED, "points")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state."""
        for name, value in state_dict.items():
            setattr(self, name, value)

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: PackedBatch, index: int) -> None:
        """Start, unless it runs."""
        if self.began is None:
            self.began = self.now(), self.cpu()
        self.tokens += batch.tokens.numel()
        self.answer_tokens += int(batch.loss_mask.sum())

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop, and note how far it has come."""
        if self.began is None:  # nothing was trained since
            if trainer.sanity_checking:  # the weights that training starts from
                self.points.append({"step": 0, **dict.fromkeys(COUNTED, 0)})
            return
        if module.device.type == "cuda":
            torch.cuda.synchronize(module.device)
        self.seconds += self.now() - self.began[0]
        self.cpu_seconds += self.cpu() - self.began[1]
        self.began = None
        self.points.append({"step": trainer.global_step, **{name: getattr(self, name) for name in COUNTED}})
