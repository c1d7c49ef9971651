"""Where artifacts live: `runs/<target>/<kind>/<name>`; an input takes a name or a path."""

from __future__ import annotations

import os
from pathlib import Path

from drafterforge.artifacts.folder import restore_interrupted
from drafterforge.artifacts.manifest import MANIFEST
from drafterforge.errors import ArtifactError


def artifact_dir(runs_dir: Path | str, target: str, kind: str, name: str) -> Path:
    """Returns the folder of a named artifact, whether or not it exists."""
    for key, value in (("target.name", target), ("name", name)):
        if not value or value.startswith(".") or "/" in value or os.sep in value or "\0" in value:
            raise ArtifactError(
                f"{key} must be a plain folder name (no '/', no leading '.'), got {value!r}; type {key}=NAME"
            )
    return Path(runs_dir) / target / kind / name


def list_artifacts(runs_dir: Path | str, target: str, kind: str) -> list[str]:
    """Returns the names of the artifacts of one kind that a target has, sorted."""
    folder = Path(runs_dir) / target / kind
    return sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}") if path.parent.name[0] != ".")


def find_artifact(runs_dir: Path | str, target: str, kind: str, name_or_path: str | Path, *, hint: str = "") -> Path:
    """Returns the folder of an artifact given by name or by path.

    When it is missing, the error says what there is, and `hint`: the command that would make it.
    """
    text = str(name_or_path)
    is_name = bool(text) and "/" not in text and os.sep not in text and not text.startswith((".", "~"))
    candidates = [artifact_dir(runs_dir, target, kind, text)] if is_name else []
    if text:
        candidates.append(Path(text).expanduser())
    for path in candidates:
        restore_interrupted(path)
        if (path / MANIFEST).is_file():
            return path
    names = list_artifacts(runs_dir, target, kind)
    there = f"there is: {', '.join(names)}" if names else "there are none yet"
    todo = f"; type `{hint}`" if hint else ("; type one of these names, or a path" if names else "")
    what = f"{kind} named {text!r}" if is_name else f"{kind} at {text!r}"
    raise ArtifactError(f"no {what} for target {target!r} in {runs_dir} ({there}){todo}")
