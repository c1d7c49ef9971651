"""Files that are whole or absent, folder locks, and system errors told in one line."""

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

_FULL = {errno.ENOSPC, errno.EDQUOT}


def write_bytes_atomic(path: Path, data: bytes | memoryview) -> None:
    """Writes a file that is either whole or absent, also after a power cut."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    with one_line(path, every=True):
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
    """Writes `value` as a JSON file that is either whole or absent."""
    write_bytes_atomic(path, json.dumps(plain_json(value), indent=2, sort_keys=True).encode() + b"\n")


def link_or_copy(source: Path, to: Path) -> None:
    """Puts a finished shard into an artifact; the staging folder keeps it until that is whole."""
    try:
        os.link(source, to)
    except OSError:  # no hard links here
        shutil.copyfile(source, to)


def file_sha256(path: Path) -> str:
    """Returns the sha256 of a file's content, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(descriptor)


def lock_folder(folder: Path) -> int | None:
    """Returns a file descriptor that holds the folder's lock, or None if another holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return descriptor  # a file system without locks: then one writer at a time, please
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def one_line(path: Path, *, every: bool = False) -> Iterator[None]:
    """Turns a full disk (or, with `every`, any system error) into an ArtifactError of one line."""
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in _FULL
        if full or "No space left on device" in str(error):
            raise ArtifactError(
                f"the disk is full: cannot write {path}; free some space and type the same command "
                "again, or type runs_dir=FOLDER on another disk"
            ) from error
        if every and isinstance(error, OSError):
            raise ArtifactError(
                f"cannot write {path}: {error.strerror or error}; check its permissions, or type runs_dir=FOLDER"
            ) from error
        raise
