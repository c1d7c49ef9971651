"""Runs PPO until its budget of cycles is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from drafterforge.training.ppo_module import PPOModule
from drafterforge.training.progress import StepProgress
from drafterforge.training.quietly import fit, quiet


class CycleProgress(StepProgress):
    """Shows a bar over cycles on a terminal, a line per tenth of the budget elsewhere."""

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Open the bar."""
        super().on_fit_start(trainer, module)
        self.tenth = 0

    def on_train_batch_end(self, trainer: Trainer, module: PPOModule, *args: Any, **kwargs: Any) -> None:
        """Move the bar, or say how far it has come."""
        tenth = 10 * module.cycles // self.total
        if self.bar is None and tenth == self.tenth:
            return
        self.tenth = tenth
        shown = ", ".join(f"{name} {module.curve[-1][f'train/{name}']:.4g}" for name in ("tokens_per_s", "entropy"))
        if self.bar is not None:
            self.bar.update(self.task, completed=min(module.cycles, self.total), shown=shown)
        else:
            self.console.print(f"cycle {module.cycles}/{self.total}: {shown}", highlight=False)


def fit_ppo(module: PPOModule, folder: Path, seed: int, progress: bool = True) -> list[dict[str, float]]:
    """Train; the curve, a point per rollout, which `folder`/logs/csv/metrics.csv has too.

    The module stays on the device it is on.  Raises KeyboardInterrupt when interrupted.
    """
    quiet()
    folder.mkdir(parents=True, exist_ok=True)
    module.generator.manual_seed(seed)
    device = module.device
    trainer = Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" else 1,
        max_steps=-1,
        max_epochs=-1,
        log_every_n_steps=1,
        logger=CSVLogger(str(folder), name="logs", version="csv", flush_logs_every_n_steps=50),
        callbacks=[CycleProgress(module.config.total_cycles)] if progress else [],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    fit(trainer, module)
    return module.curve
