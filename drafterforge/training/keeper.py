"""Keeps the best weights and the state to resume from, stops when validation no longer improves, records the curve."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from safetensors.torch import load_file, save_file


class Keeper(Callback):
    """After every validation: `best.safetensors` if `monitor` rose, then `last.ckpt`, whose state names the best.

    A validation before the first step leaves no `last.ckpt`: a run killed right after it starts over.
    """

    def __init__(self, folder: Path, patience: int, monitor: str = "val/accept_length") -> None:
        self.folder, self.patience, self.monitor = folder, patience, monitor
        self.best_score, self.best_step, self.waited = float("-inf"), 0, 0
        self.curve: list[dict[str, float]] = []

    @property
    def best_path(self) -> Path:
        """Weights of the best validation."""
        return self.folder / "best.safetensors"

    @property
    def last_path(self) -> Path:
        """State of the last validation."""
        return self.folder / "last.ckpt"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on alike."""
        return {name: getattr(self, name) for name in ("best_score", "best_step", "waited", "curve")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state."""
        for name, value in state_dict.items():
            setattr(self, name, value)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop at once when the resumed run had already stopped."""
        if self.waited >= self.patience:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record, keep, and stop when patience is spent."""
        if self.curve and self.curve[-1]["step"] >= trainer.global_step:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.curve.append({"step": trainer.global_step, **metrics})
        score = metrics[self.monitor]
        if score > self.best_score:
            self.best_score, self.best_step, self.waited = score, trainer.global_step, 0
            temporary = self.best_path.with_suffix(".tmp")
            state = {name: value.detach().cpu().contiguous() for name, value in module.drafter.state_dict().items()}
            save_file(state, temporary)
            os.replace(temporary, self.best_path)
        else:
            self.waited += 1
        if trainer.sanity_checking:  # before the first step, which lightning neither logs nor can resume from
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=0)
            return
        trainer.save_checkpoint(self.last_path)
        if self.waited >= self.patience:
            trainer.should_stop = True

    def outcome(self, chain: int) -> str:
        """What training came to, in words; chain: how many tokens a validation drafts."""
        where = f"on validation (chain of {chain})"
        first, *later = self.curve
        if first["step"] > 0:
            return f"accept length {self.best_score:.2f} {where}"
        start = f"{first[self.monitor]:.2f} at the start"
        if self.best_step > 0:
            return f"accept length {self.best_score:.2f} {where}, {start}"
        best = max(point[self.monitor] for point in later)
        return (
            f"training did not better the weights it started from, which were kept: accept length {best:.2f} at best "
            f"against {start}, {where}"
        )

    def load_best(self, module: LightningModule) -> None:
        """Put the best weights into the drafter."""
        module.drafter.load_state_dict(load_file(self.best_path))
