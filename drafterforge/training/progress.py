"""A progress bar over optimiser steps, with rate, time left, loss and accept length."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class StepProgress(Callback):
    """Shows a bar on a terminal, a line per validation elsewhere."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.console = Console(stderr=True)
        self.bar: Progress | None = None

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Open the bar."""
        if self.console.is_terminal:
            columns = (
                "{task.description}",
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[shown]}"),
            )
            self.bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console)
            self.bar.start()
            self.task = self.bar.add_task("training", total=self.total, completed=trainer.global_step, shown="")

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Move the bar."""
        if self.bar is not None:
            shown = " ".join(f"{name.split('/')[1]} {float(value):.3f}" for name, value in self._shown(trainer))
            self.bar.update(self.task, completed=trainer.global_step, shown=shown)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Say how far it has come."""
        shown = ", ".join(f"{name} {float(value):.3f}" for name, value in self._shown(trainer))
        self.console.print(f"step {trainer.global_step}/{self.total}: {shown}", highlight=False)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Close the bar, also after an interruption."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    @staticmethod
    def _shown(trainer: Trainer) -> list[tuple[str, Any]]:
        names = ("train/loss", "val/accept_length")
        return [(name, trainer.callback_metrics[name]) for name in names if name in trainer.callback_metrics]
