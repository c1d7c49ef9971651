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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drafterforge.artifacts.manifest import plain_json
from drafterforge.errors import ArtifactError

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def write_bytes_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write a file that is either complete or absent, even after a power failure."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    with report_write_errors(path):
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


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


def lock_folder(folder: Path) -> int | None:
    """A file descriptor that holds the folder's lock; None if the folder is gone or locked by another process."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return descriptor  # without file locks, concurrent writers are not detected
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into an ArtifactError; other errors pass."""
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in _DISK_FULL
        if not full and "No space left on device" not in str(error):
            raise
        raise ArtifactError(
            f"the disk is full: cannot write {path}; free some space and type the same command "
            "again, or type runs_dir=FOLDER on another disk"
        ) from error


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
