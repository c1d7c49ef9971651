"""A progress bar over optimiser steps, with loss and accept length."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from lightning import Callback, LightningModule, Trainer

from drafterforge.config.progress import Bar, bar, log

FIGURES_S = 1.0  # figures are read from the device at most once in this time, as every reading waits for it


class StepProgress(Callback):
    """A bar on a terminal; elsewhere a line a minute and a line per validation."""

    def __init__(self, total: int, title: str = "training") -> None:
        self.total, self.title = total, title
        self.stack = ExitStack()
        self.bar: Bar | None = None
        self.figures_due = 0.0  # when the text beside the bar is made again

    def on_sanity_check_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Open the bar for the validation of the initial weights."""
        self.open(trainer, module)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Open the bar at the step that training resumes from; earlier, lightning has not restored it."""
        if self.bar is None:
            self.open(trainer, module)

    def open(self, trainer: Trainer, module: LightningModule) -> None:
        """Open the bar."""
        self.bar = self.stack.enter_context(bar(self.title, self.total, completed=self.completed(trainer, module)))

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Move the bar."""
        text = ""
        if time.monotonic() >= self.figures_due:
            text = self.figures(trainer, module)
            self.figures_due = time.monotonic() + FIGURES_S
        self.bar.reach(min(self.completed(trainer, module), self.total), text)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Print the figures of a validation."""
        log(f"step {trainer.global_step}/{self.total}: {self.figures(trainer, module)}")

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        """Leave the bar where it is."""
        self.stack.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Close the bar."""
        self.stack.close()

    def completed(self, trainer: Trainer, module: LightningModule) -> int:
        """Finished units."""
        return trainer.global_step

    def figures(self, trainer: Trainer, module: LightningModule) -> str:
        """Text beside the bar."""
        metrics = trainer.callback_metrics
        names = [name for name in ("train/loss", "val/accept_length") if name in metrics]
        return ", ".join(f"{name} {float(metrics[name]):.3f}" for name in names)
