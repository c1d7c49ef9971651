"""Distils several LoRA experts together, each with the weights, log and checkpoints of a run of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, IterableDataset

from drafterforge.config.progress import log
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.train.experts import BETWEEN, ExpertsModule
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.train.ttt import PackedBatch
from drafterforge.training.batches import PackedData
from drafterforge.training.best_checkpoint import BestCheckpoint
from drafterforge.training.expert_checkpoints import ExpertCheckpointIO
from drafterforge.training.fit import fit, quiet
from drafterforge.training.loggers import ExpertLogger, build_loggers
from drafterforge.training.progress import StepProgress
from drafterforge.training.resume import SafetensorsCheckpointIO
from drafterforge.training.trainer import build_trainer, keep_freed_memory


@dataclass(frozen=True)
class ExpertRun:
    """What one expert reads and where its unfinished work lies."""

    name: str
    folder: Path
    train: PackedData  # the same object for experts that read the same batches
    val: PackedData


class ExpertBatches(IterableDataset):
    """The next batch of every stream; None for a stream that has ended, or whose experts are all trained."""

    def __init__(self, streams: Sequence[PackedData], readers: list[int], module: ExpertsModule) -> None:
        """readers: the stream of each expert."""
        super().__init__()
        self.streams, self.readers, self.module = streams, readers, module

    def __iter__(self) -> Iterator[list[PackedBatch | None]]:
        for batches in itertools.zip_longest(*(self.while_read(number) for number in range(len(self.streams)))):
            yield list(batches)

    def while_read(self, number: int) -> Iterator[PackedBatch]:
        """The batches of a stream, as long as an expert reads them."""
        batches = iter(self.streams[number])
        while any(self.readers[expert] == number for expert in self.module.active):
            if (batch := next(batches, None)) is None:
                return
            yield batch


class ExpertCheckpoints(BestCheckpoint):
    """A `BestCheckpoint` for each expert; an expert whose patience is spent is not trained any more."""

    def __init__(self, experts: Sequence[BestCheckpoint], module: ExpertsModule) -> None:
        super().__init__(experts[0].folder, experts[0].patience)
        self.experts, self.module = list(experts), module

    @property
    def is_finished(self) -> bool:
        return all(expert.is_finished for expert in self.experts)

    def state_dict(self) -> dict[str, Any]:
        return {"experts": [expert.state_dict() for expert in self.experts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for expert, state in zip(self.experts, state_dict["experts"], strict=True):
            expert.load_state_dict(state)

    def record(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Record the figures of every expert that is still trained."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        for number in self.module.active:
            prefix, expert = self.module.names[number] + BETWEEN, self.experts[number]
            figures = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
            expert.judge(trainer.global_step, figures, module.experts[number])
        return metrics

    def save(self, trainer: Trainer) -> None:
        """Write `last.ckpt` of every expert that was trained until now."""
        super().save(trainer)
        self.module.active = [number for number in self.module.active if not self.experts[number].is_finished]

    @property
    def recorded_step(self) -> int:
        return max(expert.recorded_step for expert in self.experts)


class ExpertsProgress(StepProgress):
    """Shows the accept length of every expert."""

    def figures(self, trainer: Trainer, module: LightningModule) -> str:
        """Text beside the bar."""
        key, metrics = f"{BETWEEN}val/accept_length", trainer.callback_metrics
        lengths = {name: float(metrics[name + key]) for name in module.names if name + key in metrics}
        return ", ".join(f"{name} {length:.3f}" for name, length in lengths.items())


def distil_experts(
    modules: Sequence[DistillModule], runs: Sequence[ExpertRun], config: TrainerConfig, device: torch.device, seed: int
) -> list[BestCheckpoint]:
    """Train the modules' drafters, which end with the weights of their best validation, as `distil` does with one.

    Experts that were interrupted after different steps are continued in groups of equal steps.
    """
    quiet()
    keep_freed_memory()
    seed_everything(seed, verbose=False)
    checkpoints = [
        BestCheckpoint(run.folder, module.config.patience) for run, module in zip(runs, modules, strict=True)
    ]
    groups: dict[tuple[int, bool], list[int]] = {}
    for number, checkpoint in enumerate(checkpoints):
        checkpoint.folder.mkdir(parents=True, exist_ok=True)
        groups.setdefault(saved_state(checkpoint), []).append(number)
    for (step, _), numbers in sorted(groups.items()):
        experts = ", ".join(runs[number].name for number in numbers)
        if step:
            log(f"training of {experts}: resumed at step {step} of {config.max_steps}")
        parts = [[sequence[number] for number in numbers] for sequence in (modules, runs, checkpoints)]
        distil_group(*parts, config, device, step)
    for checkpoint, module in zip(checkpoints, modules, strict=True):
        checkpoint.load_best(module)
    return checkpoints


def saved_state(checkpoint: BestCheckpoint) -> tuple[int, bool]:
    """The step after which the state of a run was saved, 0 if it was not, and whether its patience was spent."""
    if not checkpoint.last_path.exists():
        return 0, False
    saved = SafetensorsCheckpointIO().load_checkpoint(checkpoint.last_path)
    return saved["global_step"], saved["callbacks"][checkpoint.state_key]["waited"] >= checkpoint.patience


def distil_group(
    modules: Sequence[DistillModule],
    runs: Sequence[ExpertRun],
    checkpoints: Sequence[BestCheckpoint],
    config: TrainerConfig,
    device: torch.device,
    step: int,
) -> None:
    """Train experts that have all been trained until `step`."""
    train, train_readers = streams_of(runs, lambda run: run.train)
    val, val_readers = streams_of(runs, lambda run: run.val)
    module = ExpertsModule(modules, [run.name for run in runs], train_readers, val_readers)
    checkpoint = ExpertCheckpoints(checkpoints, module)
    loggers = [
        ExpertLogger(logger, run.name + BETWEEN, BETWEEN, partial(module.is_trained, number))
        for number, run in enumerate(runs)
        for logger in build_loggers(config, run.folder, step)
    ]
    trainer = build_trainer(
        config,
        runs[0].folder,
        device,
        checkpoint,
        loggers,
        trained=True,
        progress=ExpertsProgress(config.max_steps),
        checkpoint_io=ExpertCheckpointIO(module, [expert.last_path for expert in checkpoints]),
    )
    for stream in train:
        stream.first_batch = lambda: trainer.global_step * config.accumulate
    loaders = [
        DataLoader(ExpertBatches(streams, readers, module), batch_size=None)
        for streams, readers in ((train, train_readers), (val, val_readers))
    ]
    resume = str(checkpoint.last_path) if step else None
    fit(trainer, module, *loaders, ckpt_path=resume, weights_only=False)
    if checkpoint.interruption.requested:  # in the last step
        checkpoint.interrupt()


def streams_of(
    runs: Sequence[ExpertRun], batches: Callable[[ExpertRun], PackedData]
) -> tuple[list[PackedData], list[int]]:
    """The distinct batches that the runs read, and which of them each run reads."""
    distinct = list({id(batches(run)): batches(run) for run in runs}.values())
    return distinct, [distinct.index(batches(run)) for run in runs]
