"""Where artifacts live: `runs/<target>/<kind>/<name>`, or with the package; an input takes a name or a path."""

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


MOST_NAMES = 12  # that an error lists
SHIPPED = Path(__file__).parent.parent / "shipped"  # artifacts of the embedded target that come with the package


def list_artifacts(runs_dir: Path | str, target: str, kind: str) -> list[str]:
    """Returns the names of the artifacts of one kind that a target has, shipped ones included, sorted."""
    folders = Path(runs_dir) / target / kind, SHIPPED / target / kind
    found = [path.parent.name for folder in folders for path in folder.glob(f"*/{MANIFEST}")]
    return sorted({name for name in found if name[0] != "."})


def find_artifact(runs_dir: Path | str, target: str, kind: str, name_or_path: str | Path, *, hint: str = "") -> Path:
    """Returns the folder of an artifact given by name or by path; what is in `runs_dir` comes before what is shipped.

    When it is missing, the error says what there is, and `hint`: the command that would make it.
    """
    text = str(name_or_path)
    is_name = bool(text) and "/" not in text and os.sep not in text and not text.startswith((".", "~"))
    candidates = [artifact_dir(runs_dir, target, kind, text)] if is_name else []
    if text:
        candidates.append(Path(text).expanduser())
    candidates += [SHIPPED / target / kind / text] if is_name else []
    for path in candidates:
        if SHIPPED not in path.parents:
            restore_interrupted(path)
        if (path / MANIFEST).is_file():
            return path
    names = list_artifacts(runs_dir, target, kind)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    there = f"there is: {', '.join(names[:MOST_NAMES])}{more}" if names else "there are none yet"
    todo = f"; type `{hint}`" if hint else ("; type one of these names, or a path" if names else "")
    what = f"{kind} named {text!r}" if is_name else f"{kind} at {text!r}"
    raise ArtifactError(f"no {what} for target {target!r} in {runs_dir} ({there}){todo}")
