"""Steps of `quickstart`: its checks, what it prints of the training, its bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from drafterforge.artifacts.bundles import is_name, named_bundle_dir, require_no_foreign_files
from drafterforge.artifacts.locate import find_artifact, list_artifacts
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.checks import check_selector
from drafterforge.assembly.packing import make_bundle
from drafterforge.bundle.record import BUNDLE, read_record
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.commands import QuickstartConfig
from drafterforge.config.names import JOINT, parts_of
from drafterforge.data.joined import JoinedRows
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.targets.load import target_name
from drafterforge.training.loggers import require_loggers


def check_start(cfg: QuickstartConfig) -> None:
    """Refuse what fails later, before the target is loaded: no drafters to start from, no expert of the domain."""
    require_loggers(cfg.trainer)
    check_selector(cfg.pool)
    name, init = target_name(cfg.target), cfg.drafter.init
    if not set(list_artifacts(cfg.runs_dir, name, "drafters")) - {cfg.name}:
        raise ConfigError(
            f"quickstart starts from trained drafters, and there are none for {name}, neither shipped nor in "
            f"{cfg.runs_dir}; type `drafterforge train-drafter domain={cfg.domain.name}`"
        )
    if not is_name(init):
        raise ConfigError(f"drafter.init={init} is no name of a drafter; type drafter.init=NAME")
    hint = f"drafterforge quickstart domain={cfg.domain.name} drafter.init=general"
    find_artifact(cfg.runs_dir, name, "drafters", init, hint=hint)
    folder = named_bundle_dir(cfg.name, name, cfg.runs_dir)
    exists = (folder / BUNDLE).is_file() and not cfg.overwrite
    if exists and cfg.name not in [entry.name for entry in read_record(folder).drafters]:
        raise ArtifactError(f"{folder} is not quickstart's; type name=OTHER, or overwrite=true to replace it")
    require_no_foreign_files(folder)


def training_figures(rows: JoinedRows, tuned: Manifest) -> dict[str, int]:
    """Training prompts, answer tokens and steps of the expert."""
    return {
        "train_prompts": len(rows),
        "answer_tokens": sum(row.answer_tokens for row in rows),
        "training_steps": tuned.metrics["steps"],
        "best_step": tuned.metrics["best_step"],
    }


def describe_training(cfg: QuickstartConfig, about: Mapping[str, int]) -> str:
    """One sentence on the training."""
    words = f"{cfg.name} continued {cfg.drafter.init} for {about['training_steps']} steps"
    if about["best_step"] == 0:
        words += f"; validation did not improve, so {cfg.name} is a copy of {cfg.drafter.init}"
    return words


def bundle_expert(cfg: QuickstartConfig, retrieval: str, replaced: str) -> Path:
    """The folder of the bundle of the tuned expert with retrieval in its trees.

    With pool.drafters= it holds those, and the tuned expert in place of `replaced`, or in addition if that is empty.
    """
    drafters = cfg.pool.drafters or [f"{cfg.name}{JOINT}{retrieval}"]
    drafters = [cfg.name if name == replaced else name for name in drafters]
    drafters += [] if cfg.name in parts_of(drafters) else [cfg.name]
    export = ExportConfig(
        target=cfg.target,
        pool=replace(cfg.pool, drafters=drafters),
        runtime=cfg.runtime,
        bundle=cfg.name,
        runs_dir=cfg.runs_dir,
        overwrite=True,
    )
    folder = named_bundle_dir(export.bundle_name, target_name(export.target), export.runs_dir)
    make_bundle(export, folder)
    return folder
