"""Check that the files and artifacts that a config names exist, before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from drafterforge.artifacts.bundles import find_bundle
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import find_artifact, list_artifacts
from drafterforge.config.catalogue import SHORTHANDS, did_you_mean, group_choices
from drafterforge.config.drafter import NO_PARENT
from drafterforge.config.hints import command_for, command_for_answers, command_for_policy, command_for_router
from drafterforge.config.names import AUTO, POOL, RETRIEVAL, parts_of
from drafterforge.config.target import TargetConfig
from drafterforge.errors import ArtifactError

NO_FILES = (AUTO, POOL, RETRIEVAL)  # values of `drafter=` of generate and serve that name no artifact
NO_DRAFTER = ("none", "None", "off", "plain")  # typed by those who want none
POLICIES = {"policies": command_for_policy, "routers": command_for_router}  # kind of input -> the command that makes it


def check_inputs(cfg: Any, exempt: Collection[str] = (), check: Callable[[Any], None] | None = None) -> None:
    """ArtifactError if the target, a file or an artifact of a config is missing.

    exempt: kinds not looked for.  check: of the command's settings, called before the parts of a pool are looked for,
    because making a missing part mends no contradiction.
    """
    inputs = [entry for entry in _inputs(cfg, getattr(cfg, "unread_inputs", ())) if entry[2] not in exempt]
    parts = [entry for entry in inputs if entry[0].startswith("pool.")]
    for entry in inputs:
        if entry not in parts:
            _check_input(cfg, *entry)
    if getattr(cfg, "answers", ()) and cfg.data.source == "grammar":
        _check_domain(cfg)
    if check is not None:
        check(cfg)
    for entry in parts:
        _check_input(cfg, *entry)


def _check_domain(cfg: Any) -> None:
    """ArtifactError if the given answers have none of the domain; a mixture takes all of them."""
    if not cfg.domain.answers_domain:
        return
    names: set[str] = set()
    for answers in cfg.answers:
        folder = find_artifact(cfg.runs_dir, cfg.target.folder_name, "answers", answers)
        manifest = open_artifact(folder, "answers", verify=False)
        domain = manifest.config["domain"]  # a name only, where the answers are those of a stream
        names |= {domain if isinstance(domain, str) else domain["name"], *manifest.metrics["domains"]}
    if cfg.domain.name not in names:
        suggestions = {*names, *group_choices("domain")} - {cfg.domain.name}
        raise ArtifactError(
            f"no domain named {cfg.domain.name!r} in answers={','.join(cfg.answers)}"
            f"{did_you_mean(cfg.domain.name, sorted(suggestions))} (have: {', '.join(sorted(names))})"
        )


def _check_input(cfg: Any, key: str, value: Any, kind: str) -> None:
    if isinstance(value, TargetConfig):
        value.require_model()
    elif kind == "path":
        if not Path(value).expanduser().exists():
            short = next((word for word, long in SHORTHANDS.items() if long == key), key)
            raise ArtifactError(f"{short}={value}: there is no such file or folder")
    elif kind == "bundles":
        find_bundle(value, cfg.target.folder_name, cfg.runs_dir)
    elif kind == "decoders":
        for name in [] if value in NO_FILES or Path(value).expanduser().exists() else parts_of([value]):
            drafters = list_artifacts(cfg.runs_dir, cfg.target.folder_name, "drafters")
            if key == "drafter" and value in NO_DRAFTER and name not in drafters:
                raise ArtifactError(f"no drafters named {name!r}; type drafter= for plain decoding")
            if name not in NO_FILES:
                find_artifact(cfg.runs_dir, cfg.target.folder_name, "drafters", name, hint=command_for(name))
    elif kind in POLICIES:
        hint = POLICIES[kind](value)
        find_artifact(cfg.runs_dir, cfg.target.folder_name, "policies", value, hint=hint)
    elif value not in NO_PARENT:
        domain = cfg.domain.name if hasattr(cfg, "domain") else ""
        hint = command_for_answers(cfg, value, key) if kind == "answers" else command_for(value, domain)
        find_artifact(cfg.runs_dir, cfg.target.folder_name, kind, value, hint=hint)


def _inputs(config: Any, unread: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Key, value and kind of every target, path and artifact that the config names."""
    for entry in fields(config):
        key, value = prefix + entry.name, getattr(config, entry.name)
        if isinstance(value, TargetConfig):
            yield key, value, "target"
        if is_dataclass(value):
            yield from _inputs(value, unread, f"{key}.")
        elif (kind := entry.metadata.get("input")) and key not in unread:
            yield from ((key, name, kind) for name in (value if isinstance(value, list) else [value]) if name)
