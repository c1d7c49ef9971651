"""Builds the lightning trainer of a distillation and runs it, from its last checkpoint if there is one."""

from __future__ import annotations

import copy
import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader

from drafterforge.config.progress import log
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.kernels.linear import multiplies_bfloat16_faster
from drafterforge.training import ranks
from drafterforge.training.batches import PackedData
from drafterforge.training.best_checkpoint import BestCheckpoint
from drafterforge.training.fit import fit, quiet
from drafterforge.training.loggers import build_loggers
from drafterforge.training.progress import StepProgress
from drafterforge.training.resume import SafetensorsCheckpointIO
from drafterforge.training.strategies import ShardedStrategy, strategy_options
from drafterforge.training.streamed import StreamedData, StreamProgress


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed blocks: mapping fresh pages for every logits buffer costs more than the arithmetic."""
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_mmap_max = -1, -4
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


@contextmanager
def restored_threads() -> Iterator[None]:
    """Undo that lightning shares the cores out among the processes of a machine, for what follows training."""
    threads, variable = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if variable is None:
            os.environ.pop("OMP_NUM_THREADS", None)


def build_trainer(
    config: TrainerConfig,
    folder: Path,
    device: torch.device,
    checkpoint: BestCheckpoint,
    loggers: list[Logger],
    trained: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: StepProgress | None = None,
    checkpoint_io: SafetensorsCheckpointIO | None = None,
) -> Trainer:
    """A trainer of `max_steps` optimiser steps that validates every `val_every` steps, and after the last one.

    trained: also validate before the first step; lightning skips that on resumption.
    callbacks: run before `checkpoint`, which saves their state of the same step.
    progress, checkpoint_io: None: those of a training of one drafter.
    """
    accumulate = config.accumulate // ranks.num_ranks()
    precision = config.precision
    if precision == "auto":
        faster = ranks.rank() == 0 and multiplies_bfloat16_faster(device.type)  # the first one decides for all
        precision = "bf16-mixed" if ranks.largest(int(faster)) else "32-true"
    trainer = Trainer(
        **strategy_options(config.strategy, device),
        max_steps=config.max_steps,
        max_epochs=-1,
        precision=precision,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=config.grad_clip or None,
        val_check_interval=config.val_every * accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=-1 if trained else 0,
        log_every_n_steps=config.log_every,
        logger=loggers,
        callbacks=[progress or StepProgress(config.max_steps), *callbacks, checkpoint],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[checkpoint_io or SafetensorsCheckpointIO()],
        default_root_dir=str(folder),
    )
    # before each batch lightning asks the first device whether SIGTERM came; `checkpoint` asks the hosts, once a step
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    return trainer


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
    Of several ranks, the first one ends with these weights, and writes; all of them have to call this.
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
    loggers = build_loggers(config, folder, first_step) if ranks.rank() == 0 else []
    if isinstance(train, StreamedData):
        callbacks = [*callbacks, StreamProgress(train)]
    trainer = build_trainer(config, folder, device, checkpoint, loggers, trained, callbacks)
    train.first_batch = lambda: trainer.global_step * config.accumulate
    for data in (train, val):
        data.rank, data.num_ranks = ranks.rank(), ranks.num_ranks()
    loaders = [DataLoader(data, batch_size=None) for data in (train, val)]
    drafter = module.drafter
    if isinstance(trainer.strategy, ShardedStrategy):
        module.drafter, drafter = copy.deepcopy(drafter), drafter.cpu()
    with restored_threads():
        fit(trainer, module, *loaders, ckpt_path=resume, weights_only=False)
    if checkpoint.interruption.requested:  # in the last step
        checkpoint.interrupt()
    module.drafter = drafter
    if ranks.rank() == 0:
        checkpoint.load_best(module)
    return checkpoint
