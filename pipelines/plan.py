"""Estimate what a command takes before it is run: tokens, time, disk and memory of each stage, and what does not fit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.table import Table

from drafterforge.artifacts.locate import artifact_dir
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.plan import THIS, PlannedCommand
from drafterforge.config.progress import console, say, table_console
from drafterforge.data.answering import prepare_answers
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.spool import CaptureSpool
from drafterforge.evaluation.answering_trial import ANSWERING_S, TrialAnswerer
from drafterforge.evaluation.drafter_comparison import compare_with_references
from drafterforge.evaluation.held_out import decode_held_out
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.evaluation.planning import (
    DeviceRates,
    Room,
    Stage,
    duration,
    estimate_stages,
    measure_device,
    misfits,
    peak_disk,
    size,
)
from drafterforge.evaluation.stage_trials import (
    Trials,
    disk_seconds,
    folder_bytes,
    free_memory,
    memory_peak,
    process_seconds,
    stages_of,
)
from drafterforge.evaluation.trial_workload import (
    PlannedPrompts,
    assumed_workload,
    measured_workload,
    small_config,
    trial_prompts,
)
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.pipelines.train_drafter import train
from drafterforge.targets.device import choose_device, choose_dtype, describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.targets.shape import ModelShape, find_config, is_local
from drafterforge.training.initialisation import choose_init
from drafterforge.training.inputs import open_features
from drafterforge.training.step_times import StepTimes

Config = PlannedCommand
ESTIMATED = (
    "Estimates from the rates of a device are right within a factor of about three; trials on a device are closer."
)


def run(planned: Config) -> None:
    shape = ModelShape.read(find_config(planned.target))
    device = choose_device(planned.target.device)
    dtype = choose_dtype(planned.target.dtype, device)
    weights = shape.num_weights * dtype.itemsize
    room = free_room(planned, device)
    stages, source = make_plan(planned, shape, device, dtype, room)
    title = f"drafterforge {planned.name} with {planned.target.folder_name}, {size(weights)} of weights, on {source}"
    table = Table(title=title, title_justify="left")
    for heading in ("stage", "time", "tokens", "disk", "memory", "derivation"):
        table.add_column(heading)
    for stage in stages:
        disk = size(stage.disk + stage.kept) if stage.disk + stage.kept else ""
        memory, tokens = (size(stage.memory) if stage.memory else ""), (f"{stage.tokens:,}" if stage.tokens else "")
        table.add_row(stage.name, duration(stage.seconds), tokens, disk, memory, stage.derivation)
    table_console().print(table)
    kept = sum(stage.kept for stage in stages)
    print(
        f"in all: at most {duration(sum(stage.seconds for stage in stages))}; disk {size(peak_disk(stages))} at the peak, "
        f"{size(kept)} stay; memory {size(max(stage.memory for stage in stages))}"
    )
    problems = misfits(planned, stages, room, shape, weights)
    fits = f"fits: {size(room.disk)} of disk and {size(room.memory)} of memory are free"
    print("\n".join(problems) if problems else f"{fits}; next: {planned.with_settings()}")


def make_plan(
    planned: Config, shape: ModelShape, device: torch.device, dtype: torch.dtype, room: Room
) -> tuple[list[Stage], str]:
    """The stages, and what their figures come from: trials where the target is here and fits, else rates."""
    cfg, given = planned.config, planned.device
    here = given.name == THIS and given.bandwidth_gb_s is None
    if here and is_local(planned.target) and shape.num_weights * dtype.itemsize < room.memory / 2:
        warn_if_busy()
        say("plan: trying each stage for some seconds")
        began = process_seconds()
        target = load_target(cfg.target)
        return run_trials(planned, target, shape, process_seconds() - began), f"{describe_device(device)}, by trials"
    if given.bandwidth_gb_s is not None and given.tflops is not None:
        name = f"{given.name}, " if given.name != THIS else ""
        source = f"{name}{given.bandwidth_gb_s:g} GB/s and {given.tflops:g} TFLOP/s"
        rates = DeviceRates(given.bandwidth_gb_s * 1e9, given.tflops * 1e12 / 2, source)
    else:
        rates = measure_device(device, dtype if has_matrix_unit(device.type) else torch.float32)
    print(ESTIMATED)
    return estimate_stages(cfg, shape, rates, dtype.itemsize, assumed_workload(cfg)), rates.source


def free_room(planned: Config, device: torch.device) -> Room:
    """Free memory of the device and free disk at runs_dir, or what the user says of another device."""
    given, folder = planned.device, Path(planned.runs_dir).resolve()
    while not folder.exists():
        folder = folder.parent
    memory = given.memory_gb * 1e9 if given.memory_gb else free_memory(device)
    return Room(memory, given.disk_gb * 1e9 if given.disk_gb else shutil.disk_usage(folder).free)


def run_trials(planned: Config, target: Target, shape: ModelShape, load_s: float) -> list[Stage]:
    """The stages at the speed of short trials, in a folder that is deleted."""
    cfg, trials = planned.config, Trials(start_s=process_seconds())
    prompts = PlannedPrompts.of(cfg, target)
    lengths = prompts.lengths(target)
    folder = Path(cfg.runs_dir)
    with TemporaryDirectory(prefix=".plan-", dir=folder if folder.is_dir() else None) as name, quiet():
        small = small_config(cfg, target, Path(name), bool(prompts.answered))
        trials.byte_s = disk_seconds(Path(name))
        answers = try_answers(small, target, prompts, trials)
        if isinstance(small, TrainDrafterConfig):
            small = choose_init(small, target)
            try_training(small, target, answers, trials)
    work = measured_workload(prompts, lengths, trials.answerer, cfg.data.max_new_tokens)
    return stages_of(trials, cfg, target, shape, work)


def try_answers(cfg, target: Target, prompts: PlannedPrompts, trials: Trials) -> JoinedAnswers:
    """Answer some prompts, or take their answers if they have any, and store their features."""
    path = artifact_dir(cfg.runs_dir, target.name, "answers", cfg.name or cfg.domain.name)
    spool = CaptureSpool(path.with_name(".spool"))
    keep = spool.add if cfg.data.features == "cached" else lambda *_: None
    data = cfg.data
    trials.answerer = TrialAnswerer(target, data.batch_size, data.temperature, keep=keep, budget_s=ANSWERING_S)
    with memory_peak(target.device) as peak:
        answers = prepare_answers(
            trial_prompts(cfg, prompts),
            tokenizer=target.tokenizer,
            generate=trials.answerer,
            data=data,
            path=path,
            target=target,
            config={"trial": True},
            seed=cfg.seed,
            eos_ids=target.eos_ids,
        )
        joined = JoinedAnswers([answers])
        if data.features == "cached" and hasattr(cfg, "trainer"):
            began = time.perf_counter()
            features = open_features(cfg, target, joined)
            tokens = sum(int(answers.rows(split).lengths.sum()) for split in ("train", "val"))
            trials.capture_s = (time.perf_counter() - began) / tokens
            del features
    trials.answers_peak = peak.num_bytes
    tokens = sum(int(answers.rows(split).lengths.sum()) for split in ("train", "val", "test"))
    trials.answer_bytes = folder_bytes(path) / tokens
    return joined


def try_training(cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers, trials: Trials) -> None:
    """Train a few steps and decode a few tokens with the drafter, as the command does."""
    trials.steps = StepTimes()
    began = time.perf_counter()
    with memory_peak(target.device) as peak:
        drafter = train(cfg, target, answers, [trials.steps])
    timed = sum(part.seconds for part in (*trials.steps.steps, *trials.steps.validations))
    trials.training_fixed_s = time.perf_counter() - began - timed
    trials.training_peak, trials.drafter_bytes = peak.num_bytes, folder_bytes(drafter)
    began = time.perf_counter()
    with memory_peak(target.device) as peak:
        trials.rows = decode_held_out(cfg, target, answers, drafter)[0]
        references = compare_with_references(cfg, target, drafter.name, answers)
        trials.rows += references.rows if references else []
    timed = sum(row["num_tokens"] / row["tokens_per_s"] for row in trials.rows)
    trials.decoding_fixed_s, trials.decoding_peak = time.perf_counter() - began - timed, peak.num_bytes


@contextmanager
def quiet() -> Iterator[None]:
    """Print nothing of the trials."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
