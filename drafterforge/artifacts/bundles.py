"""Find bundles by name: in `runs/<target>/bundles/<name>`; imports nothing heavy."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from drafterforge.artifacts.folder import restore_interrupted
from drafterforge.artifacts.json_input import read_json
from drafterforge.artifacts.locate import BUNDLE, artifact_dir
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.catalogue import did_you_mean
from drafterforge.errors import ArtifactError, ConfigError, quote

MAX_LISTED = 3  # files that an error names


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
    if cfg.bundle_name.endswith(".tar") and Path(cfg.bundle_name).expanduser().is_file():
        raise ArtifactError(
            f"bundle={cfg.bundle_name} is a packed bundle; unpack it first: type `mkdir FOLDER && tar -xf "
            f"{cfg.bundle_name} -C FOLDER`, then bundle=FOLDER"
        )
    if cfg.format == "bundle" and cfg.out:
        return Path(cfg.out).expanduser()
    folder = Path(cfg.bundle_name).expanduser()
    if folder.is_dir() and not is_name(cfg.bundle_name):
        return folder if folder.name not in ("", "..") else folder.resolve()  # `.` has no name
    return named_bundle_dir(cfg.bundle_name, cfg.target.folder_name, cfg.runs_dir)


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


def require_no_foreign_files(folder: Path) -> None:
    """ArtifactError if a bundle's folder holds files that are not the bundle's: overwriting would delete them."""
    if not (folder / BUNDLE).is_file():
        return
    if foreign := list(foreign_files(folder)):
        listed = ", ".join(quote(name) for name in foreign[:MAX_LISTED])
        more = f" and {len(foreign) - MAX_LISTED} more" if len(foreign) > MAX_LISTED else ""
        raise ArtifactError(
            f"{folder} also holds {listed}{more}, which {BUNDLE} does not name and overwrite=true would delete; "
            "move these away, or type out=OTHER"
        )


def foreign_files(folder: Path) -> Iterator[str]:
    """Files and folders of a bundle's folder that its record does not name; without the content of such folders."""
    names = {BUNDLE, *_recorded_files(folder)}
    parents = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    for parent, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            relative = (Path(parent) / name).relative_to(folder).as_posix()
            if relative not in (parents if name in folders else names):
                yield relative
        folders[:] = [name for name in folders if (Path(parent) / name).relative_to(folder).as_posix() in parents]


def _recorded_files(folder: Path) -> list[str]:
    """Names of the files in the record of a bundle of any version; none if it is damaged."""
    try:
        record = read_json(folder / BUNDLE)
    except ArtifactError:
        return []
    files = record.get("files") if isinstance(record, dict) else None
    return list(files) if isinstance(files, dict) else []
