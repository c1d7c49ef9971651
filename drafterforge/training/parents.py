"""The trained drafters that drafter.init names: what a new drafter starts from or adds to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from drafterforge.artifacts.json_input import read_json
from drafterforge.artifacts.locate import SHIPPED, artifact_dir, find_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.runs import drafter_manifest
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.drafter import LoraConfig
from drafterforge.config.hints import command_for
from drafterforge.config.progress import say
from drafterforge.drafters.base import TrainedParent
from drafterforge.drafters.registry import manifest_kind, trained_kind
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.targets.load import Target
from drafterforge.training.size import size_values


def parents_of(cfg: TrainDrafterConfig, target: Target) -> tuple[TrainedParent | None, TrainedParent | None]:
    """The parent of a new drafter, and the expert whose training it continues; None where there is none.

    drafter.init=GENERALIST gives (generalist, None).  drafter.init=EXPERT gives (the expert's generalist, expert).
    """
    init = cfg.drafter.parent
    if not init:
        return None, None
    folder = find_artifact(cfg.runs_dir, target.name, "drafters", init, hint=command_for(init, cfg.domain.name))
    named = TrainedParent(folder, drafter_manifest(folder, target))
    if (kind := manifest_kind(named.manifest.config)) != cfg.drafter.kind:
        raise ArtifactError(
            f"drafter.init={init} is a drafter of kind {kind}, but drafter={cfg.drafter.kind} needs one of its own "
            "kind to start from; name another, or leave drafter.init out"
        )
    require_shape_of(cfg, folder)
    if not cfg.drafter.is_adapter:
        return named, None
    generalist = trained_kind(cfg.drafter.kind).base_of(folder)
    parent = named if generalist is None else TrainedParent(generalist, drafter_manifest(generalist, target))
    beside = artifact_dir(cfg.runs_dir, target.name, "drafters", parent.manifest.name)
    if SHIPPED not in parent.folder.parents and parent.folder.resolve() != beside.resolve():
        raise ArtifactError(f"a LoRA expert needs its generalist beside it: {parent.folder} must be at {beside}")
    if generalist is None:
        return named, None
    with_lora_of(cfg, named.manifest)  # refuses other LoRA settings
    if named.manifest.name == cfg.drafter_name:
        raise ConfigError(f"drafter.init={init} is the expert that this would write itself; type name=OTHER")
    return parent, named


def require_shape_of(cfg: TrainDrafterConfig, parent: Path) -> None:
    """ConfigError if a shape was typed that differs from the parent's, whose layers the new drafter keeps."""
    kind, typed = trained_kind(cfg.drafter.kind), cfg.drafter
    for key, required in kind.parent_settings(kind.base_of(parent) or parent).items():
        value = getattr(typed, key)
        if value not in (required, getattr(type(typed), key)):
            raise ConfigError(
                f"drafter.{key}={yaml_text(value)} differs from {yaml_text(required)} of drafter.init={typed.init}, "
                "whose layers are kept; leave it out, or type drafter.init=warm for new weights"
            )


def report_vocabulary(cfg: TrainDrafterConfig, parent: TrainedParent) -> None:
    """Say that a typed drafter.draft_vocab_size is not read, where the parent's other draft vocabulary is kept."""
    drafter = cfg.drafter
    size = getattr(drafter, "draft_vocab_size", None)
    if size is None or not (drafter.is_adapter or drafter.head == "own"):
        return
    folder = trained_kind(drafter.kind).base_of(parent.folder) or parent.folder
    present = read_json(folder / "config.json")["draft_vocab_size"]
    defaults = type(drafter).draft_vocab_size, size_values(cfg.target, "drafter").get("draft_vocab_size")
    if size not in (present, *defaults):
        say(
            f"drafter: {cfg.drafter_name} has the draft vocabulary of {parent.manifest.name}, {present} tokens, so "
            f"drafter.draft_vocab_size={size} is not read"
        )


def yaml_text(value: object) -> str:
    """A value as it is typed."""
    return str(value).lower()


def with_lora_of(cfg: TrainDrafterConfig, expert: Manifest) -> TrainDrafterConfig:
    """The configuration with the LoRA settings of the expert that it continues.

    Raises ConfigError where other LoRA settings were typed.
    """
    lora, default = LoraConfig(**expert.config["drafter"]["lora"]), LoraConfig()
    for key, value in to_dict(lora).items():
        typed = getattr(cfg.drafter.lora, key)
        if typed not in (value, getattr(default, key)):
            raise ConfigError(
                f"drafter.lora.{key}={typed} differs from {value} of {expert.name}, whose training continues; leave it "
                "out, or type drafter.init=general for a new expert"
            )
    return replace(cfg, drafter=replace(cfg.drafter, lora=lora))
