"""Find bundles by name: in `runs/<target>/bundles/<name>`; imports nothing heavy."""

from __future__ import annotations

import glob
from pathlib import Path

from drafterforge.artifacts.folder import restore_interrupted
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.catalogue import did_you_mean
from drafterforge.errors import ArtifactError, ConfigError

BUNDLE = "bundle.json"  # the file that makes a folder a bundle


def is_name(text: str) -> bool:
    """Whether `text` can be the name of an artifact; else it is a path."""
    return "/" not in text and not text.startswith((".", "~"))


def named_bundle_dir(bundle: str, target: str, runs_dir: Path | str) -> Path:
    """The folder in `runs_dir` of a bundle of this name, which need not exist."""
    if not is_name(bundle):
        raise ConfigError(f"bundle={bundle} is not a name (no '/', no leading '.'); type bundle=NAME, or out=FOLDER")
    folder = artifact_dir(runs_dir, target, "bundles", bundle)
    restore_interrupted(folder)
    return folder


def list_bundles(target: str, runs_dir: Path | str) -> list[str]:
    """Sorted names of a target's bundles."""
    folders = Path(runs_dir).glob(f"{glob.escape(target)}/bundles/*/{BUNDLE}")
    return sorted(path.parent.name for path in folders if path.parent.name[0] != ".")


def bundle_dir(cfg: ExportConfig) -> Path:
    """The folder of the bundle that `export` writes or packs, which may not exist yet."""
    if cfg.format == "bundle" and cfg.out:
        return Path(cfg.out).expanduser()
    folder = Path(cfg.bundle).expanduser()
    if folder.is_dir() and not is_name(cfg.bundle):
        return folder
    return named_bundle_dir(cfg.bundle, cfg.target.folder_name, cfg.runs_dir)


def find_bundle(bundle: str, target: str, runs_dir: Path | str) -> str | Path:
    """What `bundle=` refers to: the folder of the target's bundle of that name, else the given path or hub id."""
    if not is_name(bundle):
        return bundle
    folder = named_bundle_dir(bundle, target, runs_dir)
    if (folder / BUNDLE).is_file():
        return folder
    if Path(bundle).exists():
        return bundle
    names = list_bundles(target, runs_dir)
    close = did_you_mean(bundle, names)
    elsewhere = sorted(Path(runs_dir).glob(f"*/bundles/{glob.escape(bundle)}/{BUNDLE}"))
    suggestion = f"type bundle={elsewhere[0].parent}" if elsewhere else f"type `drafterforge export bundle={bundle}`"
    raise ArtifactError(
        f"no bundle named {bundle!r} for target {target!r} in {runs_dir} "
        f"(available: {', '.join(names) or 'none'})"
        f"{close + ' If not,' if close else ';'} {suggestion}, or give a folder, a .tar or a hub id"
    )
