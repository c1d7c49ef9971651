"""Short trials of the stages of a command, on this device and with the real target."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch

from drafterforge.artifacts.locate import artifact_dir
from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.config.progress import console, say
from drafterforge.data.answering import prepare_answers
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.spool import CaptureSpool
from drafterforge.evaluation.answering_trial import ANSWERING_S, TrialAnswerer, expected_lengths
from drafterforge.evaluation.drafter_comparison import compare_with_references
from drafterforge.evaluation.held_out import decode_held_out
from drafterforge.evaluation.planning import Stage, Workload
from drafterforge.evaluation.trial_stages import Trials, stages_of
from drafterforge.evaluation.trial_workload import PlannedPrompts, measured_workload, small_config, trial_prompts
from drafterforge.kernels import gpu
from drafterforge.kernels.devices import on_gpu
from drafterforge.targets.load import Target
from drafterforge.targets.shape import ModelShape
from drafterforge.training.initialisation import choose_init
from drafterforge.training.inputs import features_of, without_unread_features
from drafterforge.training.step_times import StepTimes

Train = Callable[[TrainDrafterConfig, Target, JoinedAnswers, Sequence[Any]], Path]

STATUS = Path("/proc/self/status")
SAMPLE_S = 0.05  # between two readings of the memory in use
BLOCK = 64 * 2**20  # bytes that are written to time the disk


@dataclass
class Peak:
    """Memory of a piece of work, set when it ends."""

    num_bytes: float = 0.0


@contextmanager
def memory_peak(device: torch.device) -> Iterator[Peak]:
    """The largest memory in use inside: of the allocator on a GPU, else private memory of the process (Linux)."""
    peak, ended = Peak(), threading.Event()
    if on_gpu(device):
        gpu.reset_peak_bytes(device)
        yield peak
        peak.num_bytes = gpu.peak_bytes(device)
        return

    def sample() -> None:
        while True:
            peak.num_bytes = max(peak.num_bytes, private_bytes())
            if ended.wait(SAMPLE_S):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def private_bytes(status: Path = STATUS) -> float:
    """Memory of a process that no file backs; 0 where the system does not tell."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0.0
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0.0)


def free_memory(device: torch.device) -> float:
    """Bytes that are free on the device; of the machine's memory for a CPU."""
    return gpu.free_bytes(device) if on_gpu(device) else gpu.free_host_bytes()


def process_seconds() -> float:
    """Seconds since this program was started."""
    return time.time() - psutil.Process().create_time()


def folder_bytes(folder: Path) -> float:
    """Bytes of the files in a folder."""
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def disk_seconds(folder: Path) -> float:
    """Seconds to write, hash and read one byte of a new file in `folder`; it reaches the disk, not only a cache."""
    path, block = folder / "block", torch.randint(0, 256, (BLOCK,), dtype=torch.uint8).numpy().tobytes()
    began = time.perf_counter()
    with open(path, "wb") as file:
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
    hashlib.sha256(path.read_bytes()).digest()
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds / BLOCK


@dataclass(frozen=True)
class TrialPlan:
    """The stages of a command by trials."""

    stages: list[Stage]
    work: Workload
    answered: bool  # whether the answers exist


def run_trials(cfg: PrepareDataConfig, target: Target, shape: ModelShape, train: Train) -> TrialPlan:
    """The stages at the speed of short trials, in a folder that is deleted.  train: of the command `train-drafter`."""
    trials = Trials(start_s=process_seconds())
    if isinstance(cfg, TrainDrafterConfig):
        cfg = without_unread_features(cfg)
    with trying("reading prompts"):
        prompts = PlannedPrompts.of(cfg, target)
        lengths = prompts.lengths(target)
    folder = Path(cfg.runs_dir)
    with TemporaryDirectory(prefix=".plan-", dir=folder if folder.is_dir() else None) as name:
        with trying("answering some prompts"):
            small = small_config(cfg, target, Path(name), bool(prompts.answered))
            trials.byte_s = disk_seconds(Path(name))
            answers = try_answers(small, target, prompts, trials)
        if isinstance(small, TrainDrafterConfig):
            with trying("training for some steps, then decoding"):
                small = choose_init(small, target)
                try_training(small, target, answers, trials, train)
    ends = expected_lengths(trials.answerer.lengths, cfg.data.max_new_tokens)
    work = measured_workload(prompts, lengths, ends or answer_lengths(answers))
    return TrialPlan(stages_of(trials, cfg, target, shape, work, prompts), work, bool(prompts.answered))


def answer_lengths(answers: JoinedAnswers) -> list[int]:
    """Tokens of each training answer."""
    rows = answers.rows("train")
    return [int(rows.arrays(index)[1].sum()) for index in range(len(rows))]


def try_answers(cfg: PrepareDataConfig, target: Target, prompts: PlannedPrompts, trials: Trials) -> JoinedAnswers:
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
        if data.features == "cached":
            began = time.perf_counter()
            features_of(cfg, target, answers)
            tokens = sum(int(answers.rows(split).lengths.sum()) for split in ("train", "val"))
            trials.capture_s = (time.perf_counter() - began) / tokens
    trials.answers_peak = peak.num_bytes
    tokens = sum(int(answers.rows(split).lengths.sum()) for split in ("train", "val", "test"))
    trials.answer_bytes = folder_bytes(path) / tokens
    return joined


def try_training(cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers, trials: Trials, train: Train) -> None:
    """Train a few steps and decode a few tokens with the drafter, as the command does."""
    trials.steps = StepTimes()
    began = time.perf_counter()
    with memory_peak(target.device) as peak:
        drafter = train(cfg, target, answers, [trials.steps])
    timed = sum(part.seconds for part in (*trials.steps.steps, *trials.steps.validations))
    trials.training_fixed_s = time.perf_counter() - began - timed
    trials.training_peak, trials.drafter_bytes = peak.num_bytes, folder_bytes(drafter)
    if target.is_spread:  # decoding needs one device
        return
    began = time.perf_counter()
    with memory_peak(target.device) as peak:
        trials.rows = decode_held_out(cfg, target, answers, drafter)[0]
        references = compare_with_references(cfg, target, drafter.name, answers)
        trials.rows += references.rows if references else []
    timed = sum(row["num_tokens"] / row["tokens_per_s"] for row in trials.rows)
    trials.decoding_fixed_s, trials.decoding_peak = time.perf_counter() - began - timed, peak.num_bytes


@contextmanager
def trying(stage: str) -> Iterator[None]:
    """Say which stage is tried, and print nothing else of it."""
    say(f"plan: {stage}")
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
