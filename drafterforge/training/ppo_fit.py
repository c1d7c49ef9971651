"""Trains a module by PPO until its budget of cycles is spent."""

from __future__ import annotations

from pathlib import Path

from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger

from drafterforge.training.fit import device_options, fit, quiet
from drafterforge.training.ppo_module import PPOModule
from drafterforge.training.progress import StepProgress

FIGURES = ("train/tokens_per_s", "train/entropy")  # shown while it trains


class CycleProgress(StepProgress):
    """A progress bar over the budget: replayed cycles, or decisions."""

    def completed(self, trainer: Trainer, module: PPOModule) -> int:
        """The spent budget."""
        return module.spent

    def figures(self, trainer: Trainer, module: PPOModule) -> str:
        """Text beside the bar."""
        latest = module.curve[-1] if module.curve else {}
        return ", ".join(f"{key.split('/')[1]} {latest[key]:.4g}" for key in FIGURES if key in latest)


def fit_ppo(module: PPOModule, folder: Path, seed: int, progress: bool = True) -> list[dict[str, float]]:
    """Train on the module's device; returns the curve, a point per rollout, which metrics.csv in `folder` has too.

    Raises KeyboardInterrupt when interrupted.
    """
    quiet()
    folder.mkdir(parents=True, exist_ok=True)
    module.generator.manual_seed(seed)
    trainer = Trainer(
        **device_options(module.device),
        max_steps=-1,
        max_epochs=-1,
        log_every_n_steps=1,
        logger=CSVLogger(str(folder), name="logs", version="csv", flush_logs_every_n_steps=50),
        callbacks=[CycleProgress(module.budget)] if progress else [],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    fit(trainer, module)
    return module.curve
