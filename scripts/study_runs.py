"""Trains the variants of studies one after the other, each once, and gathers what was measured of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from study_plan import Plan, compose, require_composed
from study_standings import SAME, runs_of, winners

import drafterforge
from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.typed import read_json
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.progress import say
from drafterforge.data.joined import JoinedAnswers
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation.memory import peak
from drafterforge.pipelines.train_drafter import train
from drafterforge.targets.device import KERNELS, describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.training.inputs import find_answers
from drafterforge.training.study import StepClock

Configs = dict[str, dict[str, TrainDrafterConfig | ConfigError]]


def composed(plan: Plan, typed: Sequence[str]) -> Configs:
    """By study and label what trains a variant, or why this version cannot."""
    require_composed(plan, typed)
    found: Configs = {}
    for name, study in plan.studies.items():
        found[name] = {}
        for label in study.variants:
            try:
                found[name][label] = compose(plan, study, label, typed)
            except ConfigError as error:
                found[name][label] = error
    return found


def train_all(plan: Plan, configs: Configs, only: Sequence[str]) -> None:
    """Train what is not measured yet."""
    if unknown := [name for name in only if name not in plan.studies]:
        raise ConfigError(f"no study named {unknown[0]!r}; type --only with some of {','.join(plan.studies)}")
    wanted: dict[str, tuple[str, TrainDrafterConfig]] = {}
    for name in only:
        for label, cfg in configs[name].items():
            if isinstance(cfg, ConfigError):
                say(f"{name}, {label}: left out, {cfg}")
            elif not measurement(cfg).is_file():
                wanted.setdefault(cfg.name, (f"{name}, {label}", cfg))
    targets: dict[str, Target] = {}
    for place, (what, cfg) in enumerate(wanted.values(), start=1):
        say(f"{place} of {len(wanted)}: {what}")
        key = str(cfg.target)
        if key not in targets:
            targets[key] = load_target(cfg.target)
        try:
            answers = find_answers(cfg, targets[key])
        except ArtifactError as error:
            say(f"{what}: left out, {error}")
            continue
        measurement(cfg).parent.mkdir(parents=True, exist_ok=True)
        save_json_atomic(measurement(cfg), measure(cfg, targets[key], answers, plan.validated_ttt_steps))


def measurement(cfg: TrainDrafterConfig) -> Path:
    """The file of what was measured of a variant."""
    return Path(cfg.runs_dir) / "studies" / f"{cfg.name}.json"


def measure(
    cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers, validated_ttt_steps: int
) -> dict[str, Any]:
    """Train a variant with a clock; all are validated with chains of one length, else lengths do not compare."""
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", cfg.name)
    if path.is_dir():  # trained, but killed before its seconds were written
        shutil.rmtree(path)
    cfg = replace(cfg, trainer=replace(cfg.trainer, val_ttt_steps=validated_ttt_steps))
    clock = StepClock()
    with peak(target.device) as held:
        train(cfg, target, answers, [clock])
    manifest = Manifest.read(path)
    times = {point["step"]: worked(point, target) for point in clock.points}
    curve = [validated(point) | times[point["step"]] for point in read_json(path / "curves.json")]
    weights = [file["bytes"] for name, file in manifest.files.items() if name.endswith(".safetensors")]
    return {
        "created": manifest.created,
        "drafterforge_version": drafterforge.__version__,
        "torch": torch.__version__,
        "device": describe_device(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "target": target.name,
        "answers": manifest.config["answers"],
        "validated_on": manifest.config.get("val_answers", manifest.config["answers"]),
        "draft_vocab_coverage": manifest.metrics["draft_vocab_coverage"],
        "bytes": sum(weights),
        "peak_bytes": held.num_bytes,
        "curve": curve,
    }


def worked(point: dict[str, float], target: Target) -> dict[str, float]:
    """A point of the clock, whose seconds on a CPU are those that its cores worked: other programs do not count."""
    if target.device.type != "cpu":
        return point
    return point | {"seconds": point["cpu_seconds"] / torch.get_num_threads()}


def validated(point: dict[str, float]) -> dict[str, Any]:
    """What a study keeps of a validation: how often the n-th drafted token is right, alone and with all before it."""
    depths = range(sum(key.startswith("val/accuracy_") for key in point))
    return {
        "accept_length": point["val/accept_length"],
        "accuracy": [point[f"val/accuracy_{depth}"] for depth in depths],
        "joint_accuracy": [point[f"val/joint_accuracy_{depth}"] for depth in depths],
    }


def gathered(plan: Plan, configs: Configs, command: str, settings: Sequence[str]) -> dict[str, Any]:
    """The report: every study of the plan, and what was measured so far.  settings: of all variants."""
    runs: dict[str, Any] = {}
    studies: dict[str, Any] = {}
    for name, study in plan.studies.items():
        variants = []  # a list: the order of labels says something
        for label, cfg in configs[name].items():
            refused = str(cfg) if isinstance(cfg, ConfigError) else ""
            done = not refused and measurement(cfg).is_file()
            if done:
                run = read_json(measurement(cfg))
                runs[cfg.name] = run | {"device": run["device"].removesuffix(KERNELS)}  # training uses none of them
            run = cfg.name if done else None
            variants.append({"label": label, "settings": study.variants[label], "refused": refused, "run": run})
        studies[name] = {"base": study.base, "settings": study.settings, "variants": variants}
    if not runs:
        raise ArtifactError("nothing of these studies is measured; leave --only out, or name a study")
    for name, study in studies.items():
        of_study = [runs[one["run"]] for one in study["variants"] if one["run"]]
        for key in SAME:
            if len(values := {run[key] for run in of_study}) > 1:
                raise ArtifactError(
                    f"runs of two kinds do not compare: {' and '.join(sorted(values))}, in {name}; type runs_dir=OTHER"
                )
        if len({str(run.get("validated_on", run.get("answers"))) for run in of_study}) > 1:
            raise ArtifactError(
                f"variants of {name} were validated on other answers than one another; type runs_dir=OTHER, or name "
                "val_answers= in its settings"
            )
    return described(
        {
            "bench": "distillation",
            "command": command,
            "validated_ttt_steps": plan.validated_ttt_steps,
            "noise": plan.noise,
            "base": list(settings),
            "studies": studies,
            "runs": runs,
        }
    )


def described(report: dict[str, Any]) -> dict[str, Any]:
    """The report with what its runs have in common, and what won."""
    runs = report["runs"].values()
    newest = max(runs, key=lambda run: run["created"])
    common = {key: newest[key] for key in ("created", "drafterforge_version", "torch")}
    common |= {key: " and ".join(sorted({run[key] for run in runs})) for key in SAME}
    return report | common | {"winners": winners(report)}


def with_earlier(report: dict[str, Any], configs: Configs, path: Path) -> dict[str, Any]:
    """The report, with the studies of an earlier one, `path`, of which it has nothing to compare itself.

    Studies whose settings have changed since, defaults too, are left out, in a line each.
    """
    if not path.is_file():
        raise ArtifactError(f"--earlier {path}: no such file; leave it out, or name a report of this script")
    earlier = read_json(path)
    for key in ("validated_ttt_steps", "noise", "base"):
        if earlier.get(key) != report[key]:
            raise ArtifactError(
                f"{path} is of other settings: {key}={earlier.get(key)}, here {report[key]}; type its settings, or "
                "leave --earlier out"
            )
    studies, runs = dict(report["studies"]), dict(report["runs"])
    for name in report["studies"]:
        before = earlier["studies"].get(name)
        if before is None or len(runs_of(report, name)) > 1 or len(runs_of(earlier, name)) < 2:
            continue
        now = {label: cfg.name for label, cfg in configs[name].items() if not isinstance(cfg, ConfigError)}
        then = {one["label"]: one["run"].partition(",")[0] for one in before["variants"] if one["run"]}
        if then.items() - now.items():
            say(f"{name}: left out, what {path} has of {sorted(then.items() - now.items())[0][0]} is of other settings")
            continue
        variants = []
        for one in before["variants"]:
            key = one["run"]
            if key and (run := earlier["runs"][key]) != runs.get(key, run):
                key = f"{key}, {run['created']}"  # the same settings were trained again since
            if key:
                runs[key] = run
            variants.append(one | {"run": key})
        studies[name] = before | {"variants": variants}
    kept = {one["run"] for study in studies.values() for one in study["variants"]}
    return described(report | {"studies": studies, "runs": {key: run for key, run in runs.items() if key in kept}})
