"""The studies of a YAML file: a question each, and the settings that are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from drafterforge.artifacts.typed import typed
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import load_config, to_dict
from drafterforge.errors import ConfigError

PLAN = Path(__file__).with_name("study_distillation.yaml")
ELSEWHERE = ("name", "runs_dir", "overwrite", "eval", "runtime")  # keys that change nothing of a training


@dataclass(frozen=True)
class Study:
    """Settings that differ in one thing."""

    question: str
    base: str  # the variant that others are compared with
    settings: list[str]  # of all its variants
    variants: dict[str, list[str]]
    note: str  # what to think of what was measured; empty before


@dataclass(frozen=True)
class Plan:
    """What is studied."""

    validated_ttt_steps: int  # drafted tokens of the chain that all are validated with
    noise: str  # the study whose variants differ in nothing that should matter
    base: list[str]  # settings of all
    studies: dict[str, Study]
    not_studied: dict[str, str]  # what was asked for: why not


def read_plan(path: Path) -> Plan:
    """The plan in a file; one line of error for what is wrong with it."""
    try:
        plan = typed(Plan, yaml.safe_load(path.read_text()), path.name)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}") from None
    for name, study in plan.studies.items():
        if study.base not in study.variants:
            known = ", ".join(study.variants)
            raise ConfigError(f"{path.name}: the base of {name} is {study.base!r}; wanted one of {known}")
    if plan.noise and plan.noise not in plan.studies:
        raise ConfigError(f"{path.name}: noise is {plan.noise!r}; wanted one of {', '.join(plan.studies)}, or nothing")
    return plan


def require_composed(plan: Plan, typed: Sequence[str]) -> None:
    """Refuse mistakes in the settings of all variants."""
    cfg = load_config("train_drafter", TrainDrafterConfig, [*plan.base, *typed])
    if not cfg.answers:
        raise ConfigError("all variants learn from the same answers: type answers=NAME, as prepare-data calls them")
    if cfg.drafter.kind != "eagle3":
        raise ConfigError(f"EAGLE-3 drafters are studied, got drafter.kind={cfg.drafter.kind}; leave it out")


def compose(plan: Plan, study: Study, label: str, typed: Sequence[str]) -> TrainDrafterConfig:
    """What trains a variant, under a name made of its settings: the same in all studies.

    typed: further settings, of all variants that do not say otherwise.
    """
    overrides = [*plan.base, *typed, *study.settings, *study.variants[label]]
    cfg = load_config("train_drafter", TrainDrafterConfig, overrides)
    content = {key: value for key, value in to_dict(cfg).items() if key not in ELSEWHERE}
    for part, key in (
        (content["target"], "taps"),
        (content["trainer"], "val_ttt_steps"),
        (content, "val_answers"),
    ):
        if not part[key]:  # unknown to earlier measurements
            del part[key]
    content["validated_ttt_steps"] = plan.validated_ttt_steps
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return replace(cfg, name=f"study-{digest[:10]}")
