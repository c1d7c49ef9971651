"""Find artifacts by name or by path: in `runs/<target>/<kind>/<name>`, then among those shipped with the package."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from drafterforge.artifacts.folder import SHIPPED, restore_interrupted
from drafterforge.artifacts.manifest import MANIFEST
from drafterforge.artifacts.staging import staging_folder
from drafterforge.config.catalogue import did_you_mean
from drafterforge.config.commands import InspectConfig
from drafterforge.errors import ArtifactError, quote

BUNDLE = "bundle.json"  # the file that makes a folder a bundle
MAX_NAMES = 12  # names that an error lists
MAX_NAME_BYTES = 200  # names of temporary folders add some 30 bytes, and file systems allow 255


def is_folder_name(text: str) -> bool:
    """Whether a text names a folder inside another one on any file system."""
    is_plain = bool(text) and not text.startswith(".") and "/" not in text and os.sep not in text and "\0" not in text
    return is_plain and len(text.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES


def is_folder(path: str) -> bool:
    """Whether a path of unknown origin is a folder of this machine."""
    try:
        return Path(path).expanduser().is_dir()
    except (OSError, RuntimeError):  # it is too long, or of a user that this machine does not have
        return False


def artifact_dir(runs_dir: Path | str, target: str, kind: str, name: str) -> Path:
    """The folder of a named artifact, which need not exist."""
    for key, value in (("target.name", target), ("name", name)):
        if not is_folder_name(value):
            raise ArtifactError(
                f"{key} must be a plain folder name (no '/', no leading '.', at most {MAX_NAME_BYTES} bytes), "
                f"got {quote(value)}; type {key}=NAME"
            )
    return Path(runs_dir) / target / kind / name


def list_artifacts(runs_dir: Path | str, target: str, kind: str) -> list[str]:
    """Sorted names of a target's artifacts of one kind, shipped ones included."""
    folders = Path(runs_dir) / target / kind, SHIPPED / target / kind
    names = {path.parent.name for folder in folders for path in folder.glob(f"*/{MANIFEST}")}
    return sorted(name for name in names if name[0] != ".")


def check_name(cfg: InspectConfig) -> None:
    """ArtifactError if `inspect` gets a name that no artifact or bundle has."""
    if "/" not in cfg.path and not Path(cfg.path).exists():
        folders_named(cfg.path, cfg.runs_dir)


def folders_named(name: str, runs_dir: Path | str) -> list[Path]:
    """The artifacts and bundles of this name, of any target and kind; those of `runs_dir`, else the shipped ones."""
    escaped = glob.escape(name)
    for aside in Path(runs_dir).glob(f"*/*/.{escaped}.old-*"):
        restore_interrupted(aside.with_name(name))
    folders = sorted(Path(runs_dir).glob(f"*/*/{escaped}")) or sorted(SHIPPED.glob(f"*/*/{escaped}"))
    if folders:
        return folders
    files = [path for folder in (Path(runs_dir), SHIPPED) for path in folder.glob("*/*/[!.]*/*.json")]
    names = sorted({path.parent.name for path in files if path.name in (MANIFEST, BUNDLE)})
    raise ArtifactError(
        f"{name!r} is neither an artifact of {runs_dir} or the package, nor a file or folder here ({_available(names)})"
        f"{did_you_mean(name, names)}; type `drafterforge inspect NAME_OR_PATH`"
    )


def _available(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"available: {', '.join(names[:MAX_NAMES])}{more}" if names else "there are none yet"


def is_path(text: str) -> bool:
    """Whether a text can only be the path of an artifact, not its name."""
    return "/" in text or os.sep in text or text.startswith((".", "~"))


def find_artifact(runs_dir: Path | str, target: str, kind: str, name_or_path: str | Path, *, hint: str = "") -> Path:
    """The folder of an artifact given by name or by path; `runs_dir` is searched before the shipped artifacts.

    hint: the command that would make the artifact; the error of a missing one names it.
    """
    text = str(name_or_path)
    is_name = bool(text) and not is_path(text)
    candidates = [artifact_dir(runs_dir, target, kind, text)] if is_name else []
    if text:
        candidates.append(Path(text).expanduser())
    candidates += [SHIPPED / target / kind / text] if is_name else []
    for path in candidates:
        if SHIPPED not in path.parents:
            restore_interrupted(path)
        if (path / MANIFEST).is_file():
            return path
    if is_name and (unfinished := staging_folder(candidates[0])).is_dir():
        raise ArtifactError(f"the {kind} named {text!r} are unfinished in {unfinished}; type their command again")
    names = list_artifacts(runs_dir, target, kind)
    close = did_you_mean(text, names)
    command = f"{' If not, ' if close else '; '}type `{hint}`"
    suggestion = command if hint else ("; type one of these names, or a path" if names and not close else "")
    missing = f"{kind} named {text!r}" if is_name else f"{kind} at {text!r}"
    raise ArtifactError(f"no {missing} for target {target!r} in {runs_dir} ({_available(names)}){close}{suggestion}")
