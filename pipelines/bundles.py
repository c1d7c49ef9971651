"""Bundles by name: where they lie in `runs/`, and what there is instead of one that is missing."""

from __future__ import annotations

import glob
from pathlib import Path

from drafterforge.artifacts.folder import restore_interrupted
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.bundle.record import BUNDLE
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.serving import GenerateConfig, ServeConfig
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.targets.load import target_name


def is_name(text: str) -> bool:
    """Whether a text can be the name of an artifact, not only a path."""
    return "/" not in text and not text.startswith((".", "~"))


def named_bundle(cfg: ExportConfig | GenerateConfig | ServeConfig) -> Path:
    """The folder of the bundle that `bundle=` names, whether or not it is there."""
    if not is_name(cfg.bundle):
        raise ConfigError(f"bundle={cfg.bundle} is no name (no '/', no leading '.'); type bundle=NAME, or out=FOLDER")
    folder = artifact_dir(cfg.runs_dir, target_name(cfg.target), "bundles", cfg.bundle)
    restore_interrupted(folder)
    return folder


def find_bundle(cfg: ExportConfig | GenerateConfig | ServeConfig) -> str | Path:
    """What `bundle=` means: the bundle of that name, or the path or hub id that it is."""
    if not is_name(cfg.bundle):
        return cfg.bundle
    folder = named_bundle(cfg)
    if (folder / BUNDLE).is_file():
        return folder
    if Path(cfg.bundle).exists():
        return cfg.bundle
    there = sorted(path.parent.name for path in folder.parent.glob(f"*/{BUNDLE}") if path.parent.name[0] != ".")
    elsewhere = sorted(Path(cfg.runs_dir).glob(f"*/bundles/{glob.escape(cfg.bundle)}/{BUNDLE}"))
    todo = f"type bundle={elsewhere[0].parent}" if elsewhere else f"type drafterforge export bundle={cfg.bundle}"
    raise ArtifactError(
        f"no bundle named {cfg.bundle!r} for target {folder.parent.parent.name!r} in {cfg.runs_dir} "
        f"(there is: {', '.join(there) or 'none'}); {todo}, or give a folder, a .tar or a hub id"
    )
