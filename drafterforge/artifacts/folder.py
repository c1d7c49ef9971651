"""Artifact folders appear whole, by one rename, or not at all.

A writer holds a lock on its temporary folder, and the kernel drops that lock when the writer dies:
so what a dead writer left behind can be told from what a live one is still filling.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import (
    file_sha256,
    lock_folder,
    one_line,
    sync_folder,
    write_bytes_atomic,
)
from drafterforge.artifacts.manifest import MANIFEST, Manifest, first_difference, plain_json
from drafterforge.errors import ArtifactError

MADE_BY = {
    "answers": "prepare-data",
    "features": "prepare-data",
    "drafters": "train-drafter",
    "traces": "train-policy",
    "policies": "train-policy",
    "latency": "calibrate",
    "bundles": "export",
    "reports": "train-drafter",
}


@contextlib.contextmanager
def write_artifact(
    path: Path | str,
    *,
    kind: str,
    name: str,
    target: str,
    target_fingerprint: str,
    config: Mapping[str, Any],
    parents: Sequence[Manifest | Mapping[str, str]] = (),
    metrics: dict[str, Any] | None = None,
    replace: bool = False,
) -> Iterator[Path]:
    """Yields a temporary sibling folder to fill; on success it becomes the artifact at `path`.

    `metrics` is read when the block ends, so it may be filled inside it. A kill at any moment
    leaves the old artifact or the new one; an exception in the block leaves what was there before.
    """
    path = Path(os.path.abspath(path))
    with write_folder(path, lambda: refuse_to_overwrite(path, replace)) as folder:
        yield folder
        manifest = Manifest(
            kind=kind,
            name=name,
            target=target,
            target_fingerprint=target_fingerprint,
            config=plain_json(config),
            files=hash_files(folder),
            parents=[p.as_parent() if isinstance(p, Manifest) else dict(p) for p in parents],
            metrics=plain_json(metrics or {}),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_bytes_atomic(folder / MANIFEST, manifest.to_json())


@contextlib.contextmanager
def write_folder(path: Path | str, check: Callable[[], None]) -> Iterator[Path]:
    """Yields a temporary sibling folder to fill; on success it becomes the folder at `path`, by one rename.

    check: raises if what is at `path` must stay; called before and after the block.
    """
    path = Path(os.path.abspath(path))
    with one_line(path, every=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear_stale(path)
        check()
        folder, lock = _locked_sibling(path)
    try:
        with one_line(path):
            yield folder
        with one_line(path, every=True):
            check()
            _move_into_place(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def open_artifact(
    path: Path | str,
    kind: str,
    *,
    target_fingerprint: str | None = None,
    target: str | None = None,
    verify: bool = True,
) -> Manifest:
    """Returns the manifest of a whole artifact of this kind and target, or says what is wrong.

    `verify=False` checks that every file is there with its size, but does not hash it. A target is
    compared by fingerprint where one is given, else by name.
    """
    path = Path(os.path.abspath(path))
    manifest = _read_whole(path, kind, verify)
    if manifest.kind != kind:
        raise ArtifactError(
            f"{path} holds {manifest.kind} {manifest.name!r}, but {kind} are wanted; "
            f"type `drafterforge {MADE_BY.get(kind, 'inspect PATH')}` to make them"
        )
    if target_fingerprint is not None and manifest.target_fingerprint != target_fingerprint:
        raise ArtifactError(
            f"{path} was made for target {manifest.target!r} with fingerprint "
            f"{manifest.target_fingerprint}, but target {target or manifest.target!r} has "
            f"fingerprint {target_fingerprint}; {_for_other_target(manifest, target)}"
        )
    if target_fingerprint is None and target is not None and manifest.target != target:
        raise ArtifactError(
            f"{path} was made for target {manifest.target!r}, but the target is {target!r}; "
            f"{_for_other_target(manifest, target)}"
        )
    return manifest


def is_whole(path: Path | str, *, verify: bool = False) -> bool:
    """Whether an artifact of any kind is there with all its files (and hashes, with `verify`)."""
    try:
        _read_whole(Path(os.path.abspath(path)), "artifact", verify)
    except ArtifactError:
        return False
    return True


def reuse_artifact(
    path: Path | str,
    kind: str,
    *,
    config: Mapping[str, Any],
    target: str,
    target_fingerprint: str,
    overwrite: bool = False,
    name_key: str = "name",
) -> Manifest | None:
    """Returns the artifact at `path` if it was made with this config; None if one is to be made.

    One with another config or target, or a damaged one, is refused; with `overwrite`, given up.  name_key: what one
    types to call it otherwise.
    """
    path = Path(os.path.abspath(path))
    restore_interrupted(path)
    if not path.exists():
        return None
    try:
        manifest = open_artifact(path, kind, target_fingerprint=target_fingerprint, target=target)
        changed = first_difference(manifest.config, plain_json(config))
        if changed:
            raise ArtifactError(
                f"{path} was made with other settings ({changed}); "
                f"type overwrite=true to replace it, or {name_key}=OTHER to keep it"
            )
    except ArtifactError:
        if overwrite:
            return None
        raise
    return manifest


def restore_interrupted(path: Path | str) -> None:
    """Puts back the old artifact if its writer died between moving it aside and the new one in."""
    path = Path(os.path.abspath(path))
    if path.exists():
        return
    for aside in sorted(path.parent.glob(f".{_glob_escape(path.name)}.old-*")):
        lock = lock_folder(aside)
        if lock is not None:
            with contextlib.suppress(OSError):
                os.rename(aside, path)
            os.close(lock)


def _read_whole(path: Path, kind: str, verify: bool) -> Manifest:
    restore_interrupted(path)
    again = f"type `drafterforge {MADE_BY[kind]}`" if kind in MADE_BY else "make it first"
    if not path.is_dir():
        raise ArtifactError(f"no {kind} at {path}; {again}")
    if not (path / MANIFEST).is_file():
        raise ArtifactError(f"{path} is no drafterforge artifact: it has no {MANIFEST}; {again}")
    manifest = Manifest.read(path)
    command = MADE_BY.get(manifest.kind)
    anew = f"type `drafterforge {command} overwrite=true`" if command else "make it again"
    for name, wanted in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise ArtifactError(f"{file} is missing; {anew}")
        size = file.stat().st_size
        if size != wanted["bytes"]:
            raise ArtifactError(f"{file} has {size} bytes, but {wanted['bytes']} were written; {anew}")
        if verify:
            found = file_sha256(file)
            if found != wanted["sha256"]:
                raise ArtifactError(f"{file} is damaged: sha256 {found}, but {wanted['sha256']} was written; {anew}")
    return manifest


def hash_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the sha256 and size of every file in a folder that has no manifest yet."""
    assert not (folder / MANIFEST).exists(), "the manifest is written here, not by the caller"
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in paths
    }


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def _move_into_place(folder: Path, path: Path) -> None:
    _sync(folder)
    if not path.exists():
        os.rename(folder, path)
        sync_folder(path.parent)
        return
    aside = _sibling(path, "old")
    lock = lock_folder(path)  # a live writer's folder aside is left alone by restore_interrupted
    try:
        os.rename(path, aside)
        try:
            os.rename(folder, path)
        except OSError:
            os.rename(aside, path)
            raise
        sync_folder(path.parent)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def refuse_to_overwrite(path: Path, replace: bool, marker: str = MANIFEST, name_key: str = "name") -> None:
    """Raises if what is at `path` must stay: anything but a folder with this file, and that too without `replace`.

    name_key: what one types to call it otherwise.
    """
    if not path.exists():
        return
    if not path.is_dir() or (any(path.iterdir()) and not (path / marker).exists()):
        raise ArtifactError(f"{path} is there and no drafterforge artifact; type {name_key}=OTHER, or move it")
    if not replace and any(path.iterdir()):
        raise ArtifactError(f"{path} exists already; type overwrite=true to replace it, or {name_key}=OTHER")


def _clear_stale(path: Path) -> None:
    """Removes what dead writers of `path` left; a lock tells a live writer's folder."""
    restore_interrupted(path)
    escaped = _glob_escape(path.name)
    for pattern in (f".{escaped}.tmp-*", f".{escaped}.old-*"):
        for stale in path.parent.glob(pattern):
            lock = lock_folder(stale)
            if lock is not None:
                shutil.rmtree(stale, ignore_errors=True)
                os.close(lock)


def _sibling(path: Path, role: str) -> Path:
    return path.parent / f".{path.name}.{role}-{os.getpid()}-{secrets.token_hex(4)}"


def _locked_sibling(path: Path) -> tuple[Path, int]:
    for _ in range(10):
        folder = _sibling(path, "tmp")
        folder.mkdir()
        lock = lock_folder(folder)
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:  # another writer took it for stale, between mkdir and lock
            os.close(lock)
    raise ArtifactError(f"cannot lock a folder in {path.parent}; type runs_dir=FOLDER on a local disk")


def _for_other_target(manifest: Manifest, target: str | None) -> str:
    command = f"drafterforge {MADE_BY.get(manifest.kind, 'inspect PATH')}"
    if target is None or target == manifest.target:
        return f"type `{command} overwrite=true` to make it anew for this target"
    return f"type target={manifest.target}, or `{command} target={target}` to make one for that target"


def _glob_escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
