"""Trains the variants of studies, each once, and gathers their measurements in a report."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import drafterforge
from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.json_input import read_json
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.manifest import Manifest
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.progress import say
from drafterforge.data.joined import JoinedAnswers
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation.memory import measure_peak
from drafterforge.pipelines.train_drafter import train
from drafterforge.targets.device import KERNELS, describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.training.inputs import find_answers
from drafterforge.training.training_clock import TrainingClock

import torch
from study_comparison import SETUP
from study_plan import Plan, compose

Configs = dict[str, dict[str, TrainDrafterConfig]]  # study -> label -> command


def compose_studies(plan: Plan, only: Sequence[str], typed: Sequence[str]) -> Configs:
    """The commands of the named studies."""
    if unknown := [name for name in only if name not in plan.studies]:
        raise ConfigError(f"there is no study {unknown[0]!r}; type --only with some of {','.join(plan.studies)}")
    studies = {name: plan.studies[name] for name in only or plan.studies}
    return {
        name: {label: compose(plan, study, label, typed) for label in study.variants} for name, study in studies.items()
    }


def train_all(plan: Plan, configs: Configs) -> None:
    """Train the variants that are not measured yet; those without answers are skipped with a message."""
    pending: dict[str, tuple[str, TrainDrafterConfig]] = {}
    for name, variants in configs.items():
        for label, cfg in variants.items():
            if not measurement_path(cfg).is_file():
                pending.setdefault(cfg.name, (f"{name}, {label}", cfg))
    targets: dict[str, Target] = {}
    for number, (title, cfg) in enumerate(pending.values(), start=1):
        say(f"{number} of {len(pending)}: {title}")
        key = str(cfg.target)
        if key not in targets:
            targets[key] = load_target(cfg.target)
        try:
            answers = find_answers(cfg, targets[key])
        except ArtifactError as error:
            say(f"{title}: skipped, {error}")
            continue
        measurement_path(cfg).parent.mkdir(parents=True, exist_ok=True)
        save_json_atomic(measurement_path(cfg), measure(cfg, targets[key], answers, plan.validated_ttt_steps))


def measurement_path(cfg: TrainDrafterConfig) -> Path:
    """The file that holds the measurement of a variant."""
    return Path(cfg.runs_dir) / "studies" / f"{cfg.name}.json"


def measure(
    cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers, validated_ttt_steps: int
) -> dict[str, Any]:
    """Train a variant and return its measurement.  All variants are validated with chains of one length."""
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", cfg.name)
    if path.is_dir():  # trained, but killed before its measurement was written
        shutil.rmtree(path)
    cfg = replace(cfg, trainer=replace(cfg.trainer, val_ttt_steps=validated_ttt_steps))
    clock = TrainingClock()
    with measure_peak(target.device) as memory:
        train(cfg, target, answers, [clock])
    manifest = Manifest.read(path)
    times = {point["step"]: training_time(point, target) for point in clock.points}
    curve = [validation(point) | times[point["step"]] for point in read_json(path / "curves.json")]
    return {
        "created": manifest.created,
        "drafterforge_version": drafterforge.__version__,
        "torch": torch.__version__,
        "device": describe_device(target.device).removesuffix(KERNELS),  # training does not use our kernels
        "dtype": str(target.dtype).removeprefix("torch."),
        "target": target.name,
        "answers": manifest.config["answers"],
        "validated_on": manifest.config.get("val_answers", manifest.config["answers"]),
        "draft_vocab_coverage": manifest.metrics["draft_vocab_coverage"],
        "bytes": sum(file["bytes"] for name, file in manifest.files.items() if name.endswith(".safetensors")),
        "peak_bytes": memory.num_bytes,
        "curve": curve,
    }


def training_time(point: dict[str, float], target: Target) -> dict[str, float]:
    """A point of the clock; on a CPU its seconds are CPU time, so that other programs do not count."""
    if target.device.type != "cpu":
        return point
    return point | {"seconds": point["cpu_seconds"] / torch.get_num_threads()}


def validation(point: dict[str, float]) -> dict[str, Any]:
    """Accept length, and accuracy of the n-th drafted token: alone, and with all tokens before it right."""
    depths = range(sum(key.startswith("val/accuracy_") for key in point))
    return {
        "accept_length": point["val/accept_length"],
        "accuracy": [point[f"val/accuracy_{depth}"] for depth in depths],
        "joint_accuracy": [point[f"val/joint_accuracy_{depth}"] for depth in depths],
    }


def update_report(plan: Plan, configs: Configs, typed: Sequence[str], path: Path | None) -> dict[str, Any]:
    """The report at `path`, or an empty one, with the studies of `configs` as they are measured now."""
    typed = [setting for setting in typed if not setting.startswith("runs_dir=")]
    header = {
        "bench": "distillation",
        "command": shlex.join(["python", "scripts/study_distillation.py", "train", *typed]),
        "validated_ttt_steps": plan.validated_ttt_steps,
        "noise": plan.noise,
        "base": [*(setting for setting in plan.base if not setting.startswith("runs_dir=")), *typed],
    }
    report = read_json(path) if path and path.is_file() else header | {"studies": {}, "runs": {}}
    for key in ("validated_ttt_steps", "noise", "base"):
        if report[key] != header[key]:
            raise ArtifactError(
                f"{path} was measured with {key}={report[key]}, but this command has {header[key]}; type its settings, "
                "or another --json"
            )
    studies, runs = dict(report["studies"]), dict(report["runs"])
    for name, variants in configs.items():
        paths = {f"{name}, {label}": measurement_path(cfg) for label, cfg in variants.items()}
        measured = {key: read_json(path) for key, path in paths.items() if path.is_file()}
        if not measured:
            continue
        require_comparable(name, measured.values())
        study = plan.studies[name]
        entries = [  # a list, which keeps the order of the plan
            {"label": label, "settings": study.variants[label], "run": key if key in measured else None}
            for label, key in zip(variants, paths, strict=True)
        ]
        studies[name] = {"base": study.base, "settings": study.settings, "variants": entries}
        runs |= measured
    if not studies:
        raise ArtifactError("no variant of these studies is measured; see the messages above")
    keys = {variant["run"] for study in studies.values() for variant in study["variants"]}
    runs = {key: run for key, run in runs.items() if key in keys}
    newest = max(runs.values(), key=lambda run: run["created"])
    common = {key: newest[key] for key in ("created", "drafterforge_version", "torch")}
    common |= {key: " and ".join(sorted({run[key] for run in runs.values()})) for key in SETUP}
    return header | common | {"studies": studies, "runs": runs}


def require_comparable(name: str, runs: Iterable[dict[str, Any]]) -> None:
    """Refuse runs of one study that were measured on several devices, dtypes, targets or validation answers."""
    runs = list(runs)
    for key in (*SETUP, "validated_on"):
        if len(values := {str(run[key]) for run in runs}) > 1:
            raise ArtifactError(
                f"runs of {name} do not compare: {key} is {' and '.join(sorted(values))}; type runs_dir=OTHER"
            )
