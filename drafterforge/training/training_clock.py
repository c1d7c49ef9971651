"""A clock of training alone, for studies of distillation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lightning import Callback, LightningModule, Trainer

from drafterforge.drafters.eagle3.train.ttt import PackedBatch
from drafterforge.kernels import gpu

COUNTERS = ("seconds", "cpu_seconds", "tokens", "answer_tokens")  # totals up to a validation


class TrainingClock(Callback):
    """Seconds and tokens of training up to each validation, without validating, saving and starting up.

    CPU seconds, of all threads, show where other programs slowed a run down.  The counters are saved with the
    checkpoint, so a resumed run continues them.
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self.now, self.cpu = now, cpu
        self.began: tuple[float, float] | None = None  # None: while not training
        self.seconds, self.cpu_seconds, self.tokens, self.answer_tokens = 0.0, 0.0, 0, 0
        self.points: list[dict[str, float]] = []  # one per validation

    @property
    def state_key(self) -> str:
        """Key of this callback's state in a checkpoint, unchanged from earlier versions."""
        return "StepClock"

    def state_dict(self) -> dict[str, Any]:
        """The counters up to now, for a checkpoint."""
        self.stop()
        return {name: getattr(self, name) for name in (*COUNTERS, "points")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in state_dict.items():
            setattr(self, name, value)

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: PackedBatch, index: int) -> None:
        """Start the clock unless it runs, and count the batch."""
        if self.began is None:
            self.began = self.now(), self.cpu()
        self.tokens += batch.tokens.numel()
        self.answer_tokens += int(batch.loss_mask.sum())

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop the clock and record a point."""
        if self.began is None:  # no step since the last validation
            if trainer.sanity_checking:  # the initial weights
                self.points.append({"step": 0, **dict.fromkeys(COUNTERS, 0)})
            return
        gpu.synchronize(module.device)
        self.stop()
        self.points.append({"step": trainer.global_step, **{name: getattr(self, name) for name in COUNTERS}})

    def stop(self) -> None:
        """Add the seconds since the clock was started, if it runs."""
        if self.began is not None:
            self.seconds += self.now() - self.began[0]
            self.cpu_seconds += self.cpu() - self.began[1]
            self.began = None
