"""Builds the lightning trainer of a distillation and runs it, from its last checkpoint if there is one."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader

from drafterforge.config.progress import log
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.training.batches import PackedData
from drafterforge.training.best_checkpoint import BestCheckpoint
from drafterforge.training.fit import device_options, fit, quiet
from drafterforge.training.loggers import build_loggers
from drafterforge.training.progress import StepProgress
from drafterforge.training.resume import SafetensorsCheckpointIO
from drafterforge.training.streamed import StreamedData, StreamProgress


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed blocks: mapping fresh pages for every logits buffer costs more than the arithmetic."""
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_mmap_max = -1, -4
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def build_trainer(
    config: TrainerConfig,
    folder: Path,
    device: torch.device,
    checkpoint: BestCheckpoint,
    loggers: list[Logger],
    trained: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Trainer:
    """A trainer of `max_steps` optimiser steps that validates every `val_every` steps, and at least once.

    trained: also validate before the first step; lightning skips that on resumption.
    callbacks: run before `checkpoint`, which saves their state of the same step.
    """
    precision = config.precision
    if precision == "auto":
        precision = "bf16-mixed" if has_matrix_unit(device.type) else "32-true"
    return Trainer(
        **device_options(device),
        max_steps=config.max_steps,
        max_epochs=-1,
        precision=precision,
        accumulate_grad_batches=config.accumulate,
        gradient_clip_val=config.grad_clip or None,
        val_check_interval=min(config.val_every, config.max_steps) * config.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=-1 if trained else 0,
        log_every_n_steps=config.log_every,
        logger=loggers,
        callbacks=[StepProgress(config.max_steps), *callbacks, checkpoint],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[SafetensorsCheckpointIO()],
        default_root_dir=str(folder),
    )


def distil(
    module: DistillModule,
    train: PackedData | StreamedData,
    val: PackedData,
    config: TrainerConfig,
    folder: Path,
    device: torch.device,
    seed: int,
    trained: bool = False,
    callbacks: Sequence[Callback] = (),
) -> BestCheckpoint:
    """Train the module's drafter, which ends with the weights of the best validation.

    trained: the initial weights are a trained drafter's; they are validated as step 0 and stay if no later ones are
    better.  A second call with the same folder resumes from `last.ckpt` and yields the same weights and curve.
    Raises KeyboardInterrupt for SIGINT and `Terminated` for SIGTERM, with the state saved after the step under way.
    """
    quiet()
    keep_freed_memory()
    seed_everything(seed, verbose=False)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = BestCheckpoint(folder, config.patience)
    resume = str(checkpoint.last_path) if checkpoint.last_path.exists() else None
    first_step = SafetensorsCheckpointIO().load_checkpoint(resume)["global_step"] if resume else 0
    if resume:
        log(f"training: resumed at step {first_step} of {config.max_steps}")
    loggers = build_loggers(config, folder, first_step)
    if isinstance(train, StreamedData):
        callbacks = [*callbacks, StreamProgress(train)]
    trainer = build_trainer(config, folder, device, checkpoint, loggers, trained, callbacks)
    train.first_batch = lambda: trainer.global_step * config.accumulate
    loaders = [DataLoader(data, batch_size=None) for data in (train, val)]
    fit(trainer, module, *loaders, ckpt_path=resume, weights_only=False)
    if checkpoint.interruption.requested:  # in the last step
        checkpoint.interrupt()
    if isinstance(train, StreamedData) and train.rank == 0:
        train.reader.finish()
    checkpoint.load_best(module)
    return checkpoint
