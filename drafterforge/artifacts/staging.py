"""Staging folders: long work is resumed from a folder beside the artifact that it will become."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import lock_folder, report_write_errors, save_json_atomic
from drafterforge.artifacts.manifest import first_difference, plain_json
from drafterforge.config.renamed import with_present_keys
from drafterforge.errors import ArtifactError

log = logging.getLogger(__name__)

_staging_locks: dict[Path, int] = {}  # folder -> descriptor, held until the work or the process ends


def staging_folder(path: Path | str) -> Path:
    """The folder of unfinished work for the artifact at `path`, which need not exist."""
    path = Path(os.path.abspath(path))
    return path.parent / f".{path.name}.partial"


def open_staging(
    path: Path | str,
    settings: Mapping[str, Any],
    replace: bool = True,
    alternative: str = "name=OTHER",
    overwrites: bool = True,
) -> Path:
    """The locked staging folder of `path`, emptied if it was started with other settings.

    replace: without it, work of other settings raises ArtifactError instead.  alternative: what a user types to leave
    that work.  overwrites: whether overwrite=true deletes it.  Raises ArtifactError, too, if another process works in
    the folder.
    """
    folder, settings = staging_folder(path), plain_json(settings)
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _hold_staging(folder)
        for leftover in folder.rglob(".*.tmp-*"):
            leftover.unlink(missing_ok=True)
        config = folder / "config.json"
        reason = ""
        try:
            if not replace:
                require_same_settings(path, settings, alternative, overwrites)
            stored = json.loads(config.read_bytes())
            is_intact = isinstance(stored, dict)
            reason = first_difference(with_present_keys(stored, settings), settings) if is_intact else "damaged"
        except ArtifactError:
            os.close(_staging_locks.pop(folder))
            raise
        except (OSError, ValueError):
            reason = "its config.json is missing or damaged" if any(folder.iterdir()) else ""
        if reason:
            log.warning("%s was started with other settings (%s): starting from the beginning", folder, reason)
            config.unlink(missing_ok=True)  # first: a killed clean-up must not look resumable
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not config.exists():
            save_json_atomic(config, settings)
    return folder


def require_same_settings(
    path: Path | str, settings: Mapping[str, Any], alternative: str = "name=OTHER", overwrites: bool = True
) -> None:
    """ArtifactError if the staging folder of `path` has work of other settings; locks and changes nothing."""
    folder = staging_folder(path)
    config = folder / "config.json"
    try:
        stored = json.loads(config.read_bytes())
    except (OSError, ValueError):
        return
    settings = plain_json(settings)
    changed = first_difference(with_present_keys(stored, settings), settings) if isinstance(stored, dict) else ""
    if changed and any(entry != config for entry in folder.iterdir()):
        changed = changed.removeprefix("config.")
        raise ArtifactError(
            f"{folder} has unfinished work of other settings ({changed}); type those from there to go on, "
            f"{'overwrite=true to delete it, ' if overwrites else ''}or {alternative} to leave it"
        )


def drop_staging(path: Path | str) -> None:
    """Delete the staging folder of a finished artifact, unless another process works in it."""
    folder = staging_folder(path)
    lock = _staging_locks.pop(folder, None) or lock_folder(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _hold_staging(folder: Path) -> None:
    held = _staging_locks.get(folder)
    if held is not None and os.path.samestat(os.fstat(held), os.stat(folder)):
        return
    if held is not None:
        os.close(_staging_locks.pop(folder))
    lock = lock_folder(folder)
    if lock is None:
        raise ArtifactError(f"another drafterforge process is using {folder}; wait for it, or type name=OTHER")
    _staging_locks[folder] = lock
