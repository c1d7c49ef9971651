"""One reproducible file for a bundle: equal bundles give equal bytes; unpacking trusts nothing."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from pathlib import Path

from drafterforge.artifacts.atomic import file_sha256, one_line, sync_folder
from drafterforge.artifacts.folder import write_folder
from drafterforge.artifacts.typed import MAX_BYTES
from drafterforge.bundle.files import check_files, check_name
from drafterforge.bundle.record import BUNDLE, BundleRecord, read_record
from drafterforge.errors import ArtifactError
from drafterforge.targets.smollm2 import cache_dir

FORMAT = tarfile.PAX_FORMAT  # of 1988, but for what that has no room for, such as files of more than 8 GiB


def pack(folder: Path, to: Path) -> str:
    """Write the bundle in `folder` to the tar file `to`, whole or not at all; returns its sha256.

    bundle.json comes first, then the files by name; owners, times and modes are the same everywhere.
    """
    record = read_record(folder)
    check_files(folder, record)
    temporary = to.with_name(f".{to.name}.tmp-{os.getpid()}")
    with one_line(to, every=True):
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(temporary, "w", format=FORMAT) as tar:
                for name in (BUNDLE, *sorted(record.files)):
                    with open(folder / name, "rb") as file:
                        tar.addfile(member_of(name, os.fstat(file.fileno()).st_size), file)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            digest = file_sha256(temporary)
            os.replace(temporary, to)
            sync_folder(to.parent)
        finally:
            temporary.unlink(missing_ok=True)
    return digest


def member_of(name: str, size: int) -> tarfile.TarInfo:
    """The same for the same file, wherever and whenever it is packed."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644  # time, owner and group are zero by default
    return info


def is_archive(path: Path) -> bool:
    """Whether a file is a tar file."""
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False


def unpacked(path: Path) -> Path:
    """The folder of the bundle in the tar file at `path`, in the cache; unpacked once."""
    folder = cache_dir() / "bundles" / file_sha256(path)
    with contextlib.suppress(_ThereError), write_folder(folder, lambda: _require_missing(folder)) as inside:
        unpack(path, inside)
    return folder


class _ThereError(Exception):
    """It was unpacked before, or by another process meanwhile."""


def _require_missing(folder: Path) -> None:
    """Raises if a bundle was unpacked here, and no file has been cut or taken away since."""
    with contextlib.suppress(ArtifactError):
        check_files(folder, read_record(folder), hashes=False)
        raise _ThereError


def unpack(path: Path, to: Path) -> BundleRecord:
    """Unpack the bundle in the tar file at `path` into the empty folder `to`, and check it.

    Only files that its bundle.json names come out, and no more bytes of each than that says.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            first = tar.next()
            if first is None or first.name != BUNDLE or not first.isreg() or first.size > MAX_BYTES:
                raise ArtifactError(f"{path} is no bundle: it does not begin with {BUNDLE}")
            (to / BUNDLE).write_bytes(tar.extractfile(first).read())
            record = read_record(to)
            while (member := tar.next()) is not None:
                _take(tar, member, record, to, path)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be unpacked ({str(error)[:120]}); get the bundle again") from None
    check_files(to, record)
    return record


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, record: BundleRecord, to: Path, path: Path) -> None:
    """One member of the archive, if the record knows it."""
    wanted = record.files.get(member.name)
    if wanted is None or not member.isreg() or member.issparse():
        what = "a link or no plain file" if wanted is not None else f"not named in {BUNDLE}"
        raise ArtifactError(f"{path} holds {member.name[:80]!r}, which is {what}; get the bundle again")
    if member.size != wanted.bytes:
        raise ArtifactError(f"{path}: {member.name} has {member.size:,} bytes, but {BUNDLE} says {wanted.bytes:,}")
    check_name(member.name)
    place = to / member.name
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "xb") as file:
        source = tar.extractfile(member)
        while chunk := source.read(io.DEFAULT_BUFFER_SIZE * 128):
            file.write(chunk)
