"""Pack a bundle into a reproducible tar file, and unpack archives of unknown origin safely."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from drafterforge.artifacts.atomic import atomic_file, file_sha256, full_disk, report_write_errors
from drafterforge.artifacts.folder import write_folder
from drafterforge.artifacts.json_input import MAX_BYTES
from drafterforge.bundle.files import check_files, check_name
from drafterforge.bundle.record import BUNDLE, BundleRecord, read_record
from drafterforge.errors import ArtifactError, quote, shorten
from drafterforge.targets.smollm2 import cache_dir

FORMAT = tarfile.PAX_FORMAT  # plain ustar headers, extended only where needed, such as for files above 8 GiB
BLOCK = tarfile.BLOCKSIZE
MAX_EXTENSION = 16 << 10  # bytes of a member's long name or pax header; names in a bundle have at most 500 characters
CHUNK = 1 << 20  # bytes copied at a time


def pack(folder: Path, to: Path) -> str:
    """Write the bundle in `folder` atomically to the tar file `to`; returns the sha256 of the file.

    Equal bundles give equal bytes: bundle.json comes first, then the files by name, with constant owners, times and
    modes.
    """
    record = read_record(folder)
    check_files(folder, record)
    with report_write_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(to) as temporary:
        with tarfile.open(temporary, "w", format=FORMAT) as tar:
            for name in (BUNDLE, *sorted(record.files)):
                with open(folder / name, "rb") as file:
                    tar.addfile(tar_header(name, os.fstat(file.fileno()).st_size), file)
        digest = file_sha256(temporary)
    return digest


def tar_header(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644  # time, owner and group are zero by default, so archives are reproducible
    return info


def is_archive(path: Path) -> bool:
    """Whether a file starts with the header of an uncompressed tar file."""
    try:
        with open(path, "rb") as file:
            tarfile.TarInfo.frombuf(file.read(BLOCK), "utf-8", "surrogateescape")
    except (OSError, tarfile.TarError):
        return False
    return True


def unpack_to_cache(path: Path) -> Path:
    """The folder in the cache with the bundle of the tar file at `path`, which is unpacked once."""
    folder = cache_dir() / "bundles" / file_sha256(path)
    with contextlib.suppress(_AlreadyUnpackedError), write_folder(folder, lambda: _require_missing(folder)) as inside:
        unpack(path, inside)
    return folder


class _AlreadyUnpackedError(Exception):
    """The cache holds the bundle, possibly since another process unpacked it."""


def _require_missing(folder: Path) -> None:
    """Raise if the cached bundle is intact; a damaged one is unpacked again."""
    with contextlib.suppress(ArtifactError):
        check_files(folder, read_record(folder))
        raise _AlreadyUnpackedError


def unpack(path: Path, to: Path) -> BundleRecord:
    """Unpack the bundle in the tar file at `path` into the empty folder `to`, and check it.

    Only files that its bundle.json names are written, each with exactly the size that it states.
    """
    try:
        with open(path, "rb") as file:
            entries = members(file, path)
            first = next(entries, None)
            if first is None or first.name != BUNDLE or not first.regular or first.size > MAX_BYTES:
                raise ArtifactError(f"{path} is not a bundle: it does not begin with {BUNDLE}")
            _copy(file, first, to / BUNDLE)
            record = read_record(to)
            for member in entries:
                _extract(file, member, record, to, path)
    except (tarfile.TarError, OSError, ValueError) as error:
        if full_disk(error):
            raise
        raise ArtifactError(f"{path} cannot be unpacked ({shorten(error)}); get the bundle again") from None
    check_files(to, record)
    return record


@dataclass(frozen=True)
class Member:
    """One entry of a tar file."""

    name: str
    size: int  # in bytes
    offset: int  # of its content in the file
    regular: bool  # neither a link nor a device nor a sparse file


def members(file: BinaryIO, path: Path) -> Iterator[Member]:
    """Yields the entries of an uncompressed tar file from its headers, without reading contents.

    Python's `tarfile` is unsafe for archives of unknown origin: it reads as many bytes as a header claims, and recurses
    from one header to the next. This reader rejects sizes beyond the end of the file, and bounds long names and pax
    headers.
    """
    end = os.fstat(file.fileno()).st_size
    offset, extensions = 0, {}
    while header := _header(file, offset):
        size = header.size
        extension = header.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)
        if not extension and "size" in extensions:
            size = int(extensions["size"])
        offset += BLOCK
        if not 0 <= size <= end - offset:
            raise ArtifactError(
                f"{path} is damaged: {quote(header.name)} claims {size:,} bytes, but {max(end - offset, 0):,} "
                "follow; get the bundle again"
            )
        if extension:
            if size > MAX_EXTENSION:
                raise ArtifactError(
                    f"{path} has a header of {size:,} bytes for a name, expected at most {MAX_EXTENSION:,}; "
                    "get the bundle again"
                )
            data = file.read(size)
            extensions |= {"path": _text(data)} if header.type == tarfile.GNUTYPE_LONGNAME else pax_values(data)
        else:
            regular = header.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
            sparse = any(key.startswith("GNU.sparse.") for key in extensions)
            yield Member(extensions.get("path", header.name), size, offset, regular and not sparse)
            extensions = {}
        offset += -(-size // BLOCK) * BLOCK


def _header(file: BinaryIO, offset: int) -> tarfile.TarInfo | None:
    """The header at an offset, None at the end of the archive; leaves the file positioned after the header."""
    file.seek(offset)
    block = file.read(BLOCK)
    if not block or block == bytes(BLOCK):
        return None
    return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")


def pax_values(data: bytes) -> dict[str, str]:
    """Keys and values of a pax header: lines `LENGTH KEY=VALUE`, where LENGTH counts the whole line."""
    values, start = {}, 0
    while start < len(data) and data[start]:
        digits, space, _ = data[start : start + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0  # int() takes signs, too, and a reader would go back
        key, equals, value = data[start + len(digits) + 1 : start + length - 1].partition(b"=")
        if not length or not equals or start + length > len(data) or data[start + length - 1 : start + length] != b"\n":
            raise ValueError("a pax header is not a list of LENGTH KEY=VALUE")
        values[_text(key)] = _text(value)
        start += length
    return values


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _extract(file: BinaryIO, member: Member, record: BundleRecord, to: Path, path: Path) -> None:
    """Write a member of the archive at `path` below `to`; ArtifactError if it does not match the record."""
    entry = record.files.get(member.name)
    if entry is None or not member.regular:
        problem = "a link or no regular file" if entry is not None else f"not named in {BUNDLE}"
        raise ArtifactError(f"{path} holds {quote(member.name)}, which is {problem}; get the bundle again")
    if member.size != entry.bytes:
        raise ArtifactError(
            f"{path}: {shorten(member.name)} has {member.size:,} bytes, but {BUNDLE} says {entry.bytes:,}"
        )
    check_name(member.name)
    (to / member.name).parent.mkdir(parents=True, exist_ok=True)
    _copy(file, member, to / member.name)


def _copy(source: BinaryIO, member: Member, to: Path) -> None:
    """Write a member's content to a new file."""
    source.seek(member.offset)
    with open(to, "xb") as file:
        num_bytes = member.size
        while num_bytes and (chunk := source.read(min(num_bytes, CHUNK))):
            file.write(chunk)
            num_bytes -= len(chunk)
