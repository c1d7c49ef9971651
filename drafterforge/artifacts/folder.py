"""Write, open and reuse artifact folders; a folder appears by one rename when it is complete.

A writer locks its temporary folder. The kernel releases the lock when the process ends, so an unlocked temporary
folder is the leftover of a dead writer and may be deleted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import (
    delete_stale,
    file_sha256,
    lock_folder,
    report_full_disk,
    report_write_errors,
    sync_folder,
    write_bytes_atomic,
)
from drafterforge.artifacts.manifest import MANIFEST, Manifest, first_difference, plain_json
from drafterforge.config.hints import command_for, command_for_router
from drafterforge.config.renamed import with_present_keys
from drafterforge.errors import ArtifactError, quote, shorten

SHIPPED = Path(__file__).parent.parent / "shipped"  # artifacts of the embedded target, part of the package
COMMANDS = {  # that make each kind of artifact
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
    """Yields a temporary folder to fill, which becomes the artifact at `path` when the block ends.

    `metrics` is read when the block ends, so the block may fill it. A kill at any moment leaves the old artifact or the
    new one. An exception in the block leaves the old one.
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
    """Yields a temporary folder to fill, which is renamed to `path` when the block ends.

    check: called before and after the block; raises if the present content of `path` must not be replaced.
    """
    path = Path(os.path.abspath(path))
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear_stale(path)
        check()
        folder, lock = _locked_sibling(path)
    try:
        with report_full_disk(path):
            yield folder
        with report_write_errors(path):
            check()
            _publish(folder, path)
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
    """The manifest of a complete artifact of this kind and target; ArtifactError if anything does not match.

    verify: hash every file; False compares sizes only. The target is compared by fingerprint if one is given, else by
    name.
    """
    path = Path(os.path.abspath(path))
    manifest = _read_complete(path, kind, verify)
    if manifest.kind != kind:
        raise ArtifactError(
            f"{path} holds {shorten(manifest.kind)} {quote(manifest.name)}, expected {kind}; "
            f"type `drafterforge {COMMANDS.get(kind, 'inspect PATH')}` to make them"
        )
    if target_fingerprint is not None and manifest.target_fingerprint != target_fingerprint:
        raise ArtifactError(
            f"{path} was made for target {quote(manifest.target)} with fingerprint "
            f"{shorten(manifest.target_fingerprint)}, but target {target or manifest.target!r} has "
            f"fingerprint {target_fingerprint}; {_target_hint(manifest, target)}"
        )
    if target_fingerprint is None and target is not None and manifest.target != target:
        raise ArtifactError(
            f"{path} was made for target {quote(manifest.target)}, but the target is {target!r}; "
            f"{_target_hint(manifest, target)}"
        )
    return manifest


def is_complete(path: Path | str, *, verify: bool = False) -> bool:
    """Whether `path` holds an artifact of any kind with all its files.  verify: also compare their hashes."""
    try:
        _read_complete(Path(os.path.abspath(path)), "artifact", verify)
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
    alternative: str = "name=OTHER",
    verify: bool = True,
) -> Manifest | None:
    """The manifest of the artifact at `path` if it was made with this config; None if it has to be made.

    A damaged artifact, or one of another config or target, raises ArtifactError; with `overwrite` it counts as absent.
    alternative: what a user types to keep the artifact.  verify: hash every file; False compares sizes only.
    """
    path = Path(os.path.abspath(path))
    restore_interrupted(path)
    if not path.exists():
        return None
    try:
        manifest = open_artifact(path, kind, target_fingerprint=target_fingerprint, target=target, verify=verify)
        settings = plain_json(config)
        changed = first_difference(with_present_keys(manifest.config, settings), settings)
        if changed:
            raise ArtifactError(
                f"{path} was made with other settings ({changed}); "
                f"type overwrite=true to replace it, or {alternative} to keep it"
            )
    except ArtifactError:
        if overwrite:
            return None
        raise
    with contextlib.suppress(OSError):  # a folder that cannot be written has no leftovers of ours
        _clear_stale(path)
    return manifest


def delete_artifact(path: Path | str) -> None:
    """Delete an artifact and what killed writers of it have left; a kill leaves it complete or not there."""
    path = Path(os.path.abspath(path))
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, _sibling(path, "tmp"))
    delete_stale(path, ("tmp", "old"))


def restore_interrupted(path: Path | str) -> None:
    """Move the old artifact back to `path` if its writer died between the two renames of a replacement."""
    path = Path(os.path.abspath(path))
    if path.exists():
        return
    for aside in sorted(path.parent.glob(f".{escape(path.name)}.old-*")):
        lock = lock_folder(aside)
        if lock is not None:
            with contextlib.suppress(OSError):
                os.rename(aside, path)
            os.close(lock)


def _read_complete(path: Path, kind: str, verify: bool) -> Manifest:
    restore_interrupted(path)
    make_hint = f"type `drafterforge {COMMANDS[kind]}`" if kind in COMMANDS else "make it first"
    if not path.is_dir():
        raise ArtifactError(f"no {kind} at {path}; {make_hint}")
    if not (path / MANIFEST).is_file():
        raise ArtifactError(f"{path} is not a drafterforge artifact: it has no {MANIFEST}; {make_hint}")
    manifest = Manifest.read(path)
    hint = remake_hint(path, manifest)
    for name, entry in manifest.files.items():
        file = path / name
        if not os.path.isfile(file):  # also for a name that is too long
            raise ArtifactError(f"{path}/{shorten(name, 200)} is missing; {hint}")
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise ArtifactError(f"{file} has {size} bytes, but {entry['bytes']} were written; {hint}")
        if verify and (sha256 := file_sha256(file)) != entry["sha256"]:
            raise ArtifactError(
                f"{file} is damaged: its sha256 is {sha256}, but {shorten(entry['sha256'])} was written; {hint}"
            )
    return manifest


def remake_hint(path: Path, manifest: Manifest | None = None) -> str:
    """What to type to make the damaged artifact at `path` again.  manifest: None reads it."""
    if SHIPPED in path.absolute().parents:
        return "install drafterforge again"
    try:
        manifest = manifest or Manifest.read(path)
    except ArtifactError:
        return "make it again with overwrite=true"
    return f"type `{_command_of(manifest)} overwrite=true`"


def _command_of(manifest: Manifest) -> str:
    """The command that makes an artifact like this one; its other settings must be typed too."""
    name, config = shorten(manifest.name), manifest.config
    domain = config.get("domain", "")
    domain = shorten(domain.get("name") if isinstance(domain, dict) else domain)
    policy = config.get("policy")
    method = shorten((policy.get("name") or policy.get("method")) if isinstance(policy, dict) else "")
    if manifest.kind == "drafters":
        return command_for(name, domain or "DOMAIN")
    if manifest.kind in ("answers", "features"):
        return f"drafterforge prepare-data domain={domain or 'DOMAIN'} name={name}"
    if manifest.kind == "policies" and method:
        named = "" if name == method else f" name={name}"
        return command_for_router(name) if method == "router" else f"drafterforge train-policy policy={method}{named}"
    if manifest.kind == "latency":
        return f"drafterforge calibrate drafter={name}"
    return f"drafterforge {COMMANDS.get(manifest.kind, 'inspect PATH')}"


def hash_files(folder: Path) -> dict[str, dict[str, Any]]:
    """The sha256 and size of every file in a folder that has no manifest yet, by relative posix name."""
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


def _publish(folder: Path, path: Path) -> None:
    _sync(folder)
    if not path.exists():
        os.rename(folder, path)
        sync_folder(path.parent)
        return
    aside = _sibling(path, "old")
    lock = lock_folder(path)  # keeps restore_interrupted of another process from moving the old artifact back
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
    """ArtifactError if `path` may not be replaced: it is foreign, or it is ours and `replace` is false.

    marker: the file that shows that a folder is ours.  name_key: the key that a user types for another name.
    """
    if not path.exists():
        return
    if not path.is_dir() or (any(path.iterdir()) and not (path / marker).exists()):
        raise ArtifactError(f"{path} exists and is not a drafterforge artifact; type {name_key}=OTHER, or move it")
    if not replace and any(path.iterdir()):
        raise ArtifactError(f"{path} exists already; type overwrite=true to replace it, or {name_key}=OTHER")


def _clear_stale(path: Path) -> None:
    """Delete temporary folders of `path` whose writers are dead: they are not locked."""
    restore_interrupted(path)
    delete_stale(path, ("tmp", "old"))


def _sibling(path: Path, role: str) -> Path:
    return path.parent / f".{path.name}.{role}-{os.getpid()}-{secrets.token_hex(4)}"


def _locked_sibling(path: Path) -> tuple[Path, int]:
    for _ in range(10):
        folder = _sibling(path, "tmp")
        folder.mkdir()
        lock = lock_folder(folder)
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:  # another writer deleted the folder as stale, between mkdir and lock
            os.close(lock)
    raise ArtifactError(f"cannot lock a folder in {path.parent}; type runs_dir=FOLDER on a local disk")


def _target_hint(manifest: Manifest, target: str | None) -> str:
    command = f"drafterforge {COMMANDS.get(manifest.kind, 'inspect PATH')}"
    if target is None or target == manifest.target:
        return f"type `{command} overwrite=true` to make it again for this target"
    return f"type target={shorten(manifest.target)}, or `{command}` to make one for this target"
