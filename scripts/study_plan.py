"""Reads the studies of a YAML file: one question each, and the settings that are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drafterforge.artifacts.json_input import parse_as
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import load_config, to_dict
from drafterforge.errors import ConfigError

import yaml

PLAN = Path(__file__).with_name("study_distillation.yaml")
NEW = "drafter=eagle3"  # a variant that names no start gets new weights
NOT_TRAINING = ("name", "runs_dir", "overwrite", "eval", "runtime")  # keys that do not change the trained drafter


@dataclass(frozen=True)
class Study:
    """Variants that differ in one setting."""

    question: str
    base: str  # the variant that the others are compared with
    settings: list[str]  # of all variants
    variants: dict[str, list[str]]
    note: str  # conclusions, written by hand; empty until the study is measured


@dataclass(frozen=True)
class Plan:
    """All studies."""

    validated_ttt_steps: int  # drafted tokens of the chain that validates every variant
    noise: str  # the study whose variants differ only in the seed
    base: list[str]  # settings of all studies
    studies: dict[str, Study]
    not_studied: dict[str, str]  # topic -> why it is left out


def read_plan(path: Path) -> Plan:
    """Raises ConfigError if a base or the noise study does not exist."""
    plan = parse_as(Plan, yaml.safe_load(path.read_text()), path.name)
    for name, study in plan.studies.items():
        if study.base not in study.variants:
            labels = ", ".join(study.variants)
            raise ConfigError(f"{path.name}: the base of {name} is {study.base!r}; it must be one of {labels}")
    if plan.noise not in plan.studies:
        raise ConfigError(f"{path.name}: noise is {plan.noise!r}; it must be one of {', '.join(plan.studies)}")
    return plan


def compose(plan: Plan, study: Study, label: str, typed: Sequence[str]) -> TrainDrafterConfig:
    """The command that trains a variant.  Equal settings give an equal name, so studies share runs.

    typed: settings of the command line, which a study or variant may override.
    """
    overrides = [NEW, *plan.base, *typed, *study.settings, *study.variants[label]]
    cfg = load_config("train_drafter", TrainDrafterConfig, overrides)
    content = {key: value for key, value in to_dict(cfg).items() if key not in NOT_TRAINING}
    content["validated_ttt_steps"] = plan.validated_ttt_steps
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return replace(cfg, name=f"study-{digest[:10]}")
