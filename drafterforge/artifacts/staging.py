"""Long work resumes from a staging folder beside the artifact it will become."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import lock_folder, one_line, save_json_atomic
from drafterforge.artifacts.manifest import first_difference, plain_json
from drafterforge.errors import ArtifactError

log = logging.getLogger(__name__)

_staging_locks: dict[Path, int] = {}  # held until the work is done, or the process ends


def staging_folder(path: Path | str) -> Path:
    """Returns where the unfinished work for the artifact at `path` lives."""
    path = Path(os.path.abspath(path))
    return path.parent / f".{path.name}.partial"


def open_staging(path: Path | str, settings: Mapping[str, Any]) -> Path:
    """Returns the staging folder of `path`; it is emptied if it was started with other settings.

    Another process at work in the same folder is an error.
    """
    folder, wanted = staging_folder(path), plain_json(settings)
    with one_line(folder, every=True):
        folder.mkdir(parents=True, exist_ok=True)
        _hold_staging(folder)
        for leftover in folder.glob(".*.tmp-*"):
            leftover.unlink(missing_ok=True)
        config = folder / "config.json"
        try:
            found = json.loads(config.read_bytes())
            reason = first_difference(found, wanted) if isinstance(found, dict) else "damaged"
        except (OSError, ValueError):
            reason = "its config.json is missing or damaged" if any(folder.iterdir()) else ""
        if reason:
            log.warning("%s was started with other settings (%s): starting anew", folder, reason)
            config.unlink(missing_ok=True)  # first: a kill here must not look like a resumable start
            for item in folder.iterdir():
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        if not config.exists():
            save_json_atomic(config, wanted)
    return folder


def drop_staging(path: Path | str) -> None:
    """Removes the staging folder of a finished artifact."""
    folder = staging_folder(path)
    shutil.rmtree(folder, ignore_errors=True)
    lock = _staging_locks.pop(folder, None)
    if lock is not None:
        os.close(lock)


def _hold_staging(folder: Path) -> None:
    held = _staging_locks.get(folder)
    if held is not None and os.path.samestat(os.fstat(held), os.stat(folder)):
        return
    if held is not None:
        os.close(_staging_locks.pop(folder))
    lock = lock_folder(folder)
    if lock is None:
        raise ArtifactError(f"another drafterforge process is at work in {folder}; wait for it, or type name=OTHER")
    _staging_locks[folder] = lock
