"""Checkpoints of a distillation: the best weights, the state to resume from, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from drafterforge.config.progress import say
from drafterforge.errors import ConfigError
from drafterforge.training import ranks
from drafterforge.training.interruption import Interruption
from drafterforge.training.resume import load_tensors, save_tensors, shift_batches
from drafterforge.training.strategies import gathered


class BestCheckpoint(Callback):
    """Saves `best.safetensors` after a validation that raised `monitor`, and `last.ckpt` after every validation.

    Training stops after `patience` validations without a rise, or after SIGINT or SIGTERM, as soon as the optimiser
    step under way, and the validation if one is due, is finished and saved.  The validation of the initial weights
    saves no `last.ckpt`, so a run killed right after it starts over.  Of several ranks, the first one writes.
    """

    def __init__(self, folder: Path, patience: int, monitor: str = "val/accept_length") -> None:
        self.folder, self.patience, self.monitor = folder, patience, monitor
        self.interruption = Interruption()
        self.best_score, self.best_step, self.waited = float("-inf"), 0, 0
        self.saved_step = -1
        self.after_save: list[Callable[[], None]] = []  # called when `last.ckpt` is on disk
        self.curve: list[dict[str, float]] = []

    @property
    def state_key(self) -> str:
        """Key of this callback's state in `last.ckpt`, unchanged from earlier versions."""
        return "Keeper"

    @property
    def best_path(self) -> Path:
        """Weights of the best validation."""
        return self.folder / "best.safetensors"

    @property
    def last_path(self) -> Path:
        """State to resume from."""
        return self.folder / "last.ckpt"

    @property
    def is_finished(self) -> bool:
        """Whether patience is spent."""
        return self.waited >= self.patience

    @property
    def recorded_step(self) -> int:
        """The step of the last recorded validation; -1 if there is none."""
        return self.curve[-1]["step"] if self.curve else -1

    def state_dict(self) -> dict[str, Any]:
        """Best validation, patience and curve, for `last.ckpt`."""
        return {name: getattr(self, name) for name in ("best_score", "best_step", "waited", "curve")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in state_dict.items():
            setattr(self, name, value)

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Load checkpoints without the frozen weights, which they lack; those of earlier versions have them."""
        module.strict_loading = False

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop at once if the resumed run had stopped; from now on a signal is a request."""
        if self.is_finished:
            trainer.should_stop = True
        self.interruption.listen()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Save the state of an interrupted run after a whole optimiser step; validate after the last one."""
        if self._ends_step(trainer):
            self.interruption.agree()
        if self._is_last_step(trainer):
            trainer.should_stop = True  # makes lightning validate
        if self.interruption.requested:
            self.save_step(trainer)

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """End an interrupted run once its state is saved and its last step is logged."""
        if self.interruption.requested and self.saved_step == trainer.global_step:
            self.interrupt()

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Record the figures, save, and stop when patience is spent."""
        if self.recorded_step >= trainer.global_step:
            return
        metrics = self.record(trainer, module)
        if trainer.sanity_checking:  # lightning neither logs it nor resumes from it
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=0)
            return
        self.save(trainer)
        self.interruption.agree()
        if self.is_finished:
            trainer.should_stop = True

    def record(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Record the figures of a validation; returns them."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.judge(trainer.global_step, metrics, module)
        return metrics

    def judge(self, step: int, metrics: dict[str, float], module: LightningModule) -> None:
        """Add a point to the curve, and save the weights if it is the best.  ConfigError if the loss is not finite."""
        if not math.isfinite(loss := metrics.get("val/loss", 0.0)):
            raise ConfigError(
                f"val/loss is {loss} after step {step}, so the weights are useless; type a smaller trainer.lr=, or "
                "target.dtype=bfloat16 if the target computes in float16, and overwrite=true"
            )
        self.curve.append({"step": step, **metrics})
        score = metrics[self.monitor]
        if score > self.best_score:
            self.best_score, self.best_step, self.waited = score, step, 0
            self.save_best(gathered(without_frozen(module.drafter, module.drafter.state_dict())))
        else:
            self.waited += 1

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save as one process would, so that any number of ranks resumes, and without the frozen weights."""
        checkpoint["state_dict"] = without_frozen(module, checkpoint["state_dict"])
        shift_batches(checkpoint, lambda count: count * ranks.num_ranks())

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Count this rank's batches."""
        shift_batches(checkpoint, lambda count: count // ranks.num_ranks())

    def interrupt(self) -> None:
        """Raise what the signal stands for; the state is saved."""
        say(f"training: saved at step {self.saved_step}")
        self.interruption.end()

    def save_best(self, state: dict[str, Tensor]) -> None:
        """Write `best.safetensors`."""
        if ranks.rank() == 0:
            save_tensors(self.best_path, {name: value.detach().cpu().contiguous() for name, value in state.items()})

    def _ends_step(self, trainer: Trainer) -> bool:
        batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        return batches % trainer.accumulate_grad_batches == 0

    def _is_last_step(self, trainer: Trainer) -> bool:
        return trainer.global_step >= trainer.max_steps

    def save_step(self, trainer: Trainer) -> None:
        """Write `last.ckpt` after a batch that ends an optimiser step, unless a validation follows, which saves."""
        batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        # and saves then: on resumption lightning would skip it
        validates = batches % trainer.val_check_batch == 0 or self._is_last_step(trainer)
        if self._ends_step(trainer) and not validates:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write `last.ckpt`."""
        trainer.save_checkpoint(self.last_path)
        self.saved_step = trainer.global_step
        for act in self.after_save:
            act()

    def summary(self, chain: int, num_prompts: int) -> str:
        """What training reached.  chain: how many tokens a validation drafts, for each of `num_prompts` prompts."""
        where = f"on validation ({num_prompts} prompts, chain of {chain})"
        first, *later = self.curve
        if first["step"] > 0:
            return f"accept length {self.best_score:.2f} {where}"
        start = f"{first[self.monitor]:.2f} at the start"
        if self.best_step > 0:
            return f"accept length {self.best_score:.2f} {where}, {start}"
        best = max(point[self.monitor] for point in later)
        return (
            f"training did not improve on the weights it started from, which were kept: accept length {best:.2f} at "
            f"best against {start}, {where}"
        )

    def load_best(self, module: LightningModule) -> None:
        """Load the best weights into the drafter, which has the frozen ones."""
        module.drafter.load_state_dict(load_tensors(self.best_path)[0], strict=False)


def without_frozen(module: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A state of the module without the weights that are not trained: it is built with them."""
    parameters = module.named_parameters(remove_duplicate=False)  # experts share frozen weights
    frozen = {name for name, parameter in parameters if not parameter.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen}
