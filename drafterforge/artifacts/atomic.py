"""Atomic file writes, folder locks, and one-line errors for failed writes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from drafterforge.artifacts.manifest import plain_json
from drafterforge.errors import ArtifactError

FILE_LIMIT = "a file exceeds the limit on file sizes (ulimit -f, or the file system's)"
ASKED_S = 0.1  # longer than `is_locked` holds a lock
_DISK_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk is full", errno.EFBIG: FILE_LIMIT}
_WORDS = {  # safetensors and arrow wrap the system's error in their own
    "No space left on device": "the disk is full",
    "Disk quota exceeded": "the disk is full",
    "os error 28": "the disk is full",
    "File too large": FILE_LIMIT,
    "os error 27": FILE_LIMIT,
}


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a path to write, which becomes the file at `path` when the block ends: complete, or not at all.

    The content is on the disk before the name is, so that a power failure leaves the old file or the new one.  Files
    that killed writers have left are deleted.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    with report_write_errors(path):
        delete_stale(path)
        temporary.touch()
        lock = lock_folder(temporary)
        try:
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
            if lock is not None:
                os.close(lock)


def delete_stale(path: Path, roles: Sequence[str] = ("tmp",)) -> None:
    """Delete what dead writers of `path` have left beside it: siblings `.NAME.ROLE-*` that nobody locks."""
    for role in roles:
        for stale in path.parent.glob(f".{escape(path.name)}.{role}-*"):
            lock = lock_folder(stale)
            if lock is None:
                continue
            if stale.is_dir():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)
            os.close(lock)


def write_bytes_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write a file that is either complete or absent, even after a power failure."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


def save_json_atomic(path: Path, value: Any) -> None:
    """Write `value` as JSON into a file that is either complete or absent."""
    write_bytes_atomic(path, json.dumps(plain_json(value), indent=2, sort_keys=True).encode() + b"\n")


def link_or_copy(source: Path, to: Path) -> None:
    """Add a finished shard to an artifact; the staging folder keeps its own link until the artifact is complete."""
    try:
        os.link(source, to)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, to)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Flush a folder's directory entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync folders
            raise
    finally:
        os.close(descriptor)


def lock_folder(folder: Path, wait_s: float = 0.0) -> int | None:
    """A file descriptor that holds the folder's lock; None if the folder is gone or locked by another process.

    wait_s: seconds for which a locked folder is tried again.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                return descriptor  # without file locks, concurrent writers are not detected
            if time.monotonic() < end:
                time.sleep(wait_s / 10)
                continue
            os.close(descriptor)
            return None
        return descriptor


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of a file or folder, see `lock_folder`."""
    lock = lock_folder(path)
    if lock is not None:
        os.close(lock)
    return lock is None and path.exists()


@contextlib.contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into an ArtifactError; other errors pass."""
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        if (reason := full_disk(error)) is None:
            raise
        raise ArtifactError(
            f"{reason}: cannot write {path}; free some space and type the same command "
            "again, or type runs_dir=FOLDER on another disk"
        ) from error


def full_disk(error: BaseException) -> str | None:
    """Why an error stands for a file that the disk, or a limit, has no room for; None if it does not."""
    reason = _DISK_FULL.get(error.errno) if isinstance(error, OSError) and error.errno is not None else None
    text = str(error)
    return reason or next((reason for words, reason in _WORDS.items() if words in text), None)


@contextlib.contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn any OSError into an ArtifactError."""
    try:
        with report_full_disk(path):
            yield
    except OSError as error:
        raise ArtifactError(
            f"cannot write {path}: {error.strerror or error}; check its permissions, or type runs_dir=FOLDER"
        ) from error
