"""Check that the files of a bundle are exactly those of its record: none missing, changed, added or linked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from drafterforge.artifacts.atomic import file_sha256
from drafterforge.bundle.record import BUNDLE, BundleRecord
from drafterforge.errors import ArtifactError, quote

SUFFIXES = (".json", ".safetensors", ".md", ".txt", ".jinja", ".model", ".png")  # data only, no code
FILES_WITHOUT_SUFFIX = ("LICENSE", "NOTICE")
HUB_FILES = (".cache", ".gitattributes", ".git", ".huggingface")  # added at the top by clones and downloads


def check_name(name: str) -> None:
    """ArtifactError if a path leaves the bundle, is not in normal form, or has a suffix that no bundle holds."""
    path = PurePosixPath(name)
    normal = name and not path.is_absolute() and path.as_posix() == name and "\\" not in name and "\0" not in name
    if not normal or any(part in ("..", ".") or part.startswith(".") for part in path.parts) or len(name) > 500:
        raise ArtifactError(f"{BUNDLE} names the file {quote(name)}; expected a plain path inside the bundle")
    if path.suffix not in SUFFIXES and path.name not in FILES_WITHOUT_SUFFIX:
        raise ArtifactError(
            f"{BUNDLE} names the file {quote(name)}; a bundle holds {', '.join(SUFFIXES)} files, no pickles or programs"
        )


def check_files(folder: Path, record: BundleRecord, hashes: bool = True) -> None:
    """ArtifactError if a file is missing, changed, linked, or not named in the record.

    hashes: also hash every file.  Sizes are compared first, so a file that is larger than declared is never read.
    """
    for name in record.files:
        check_name(name)
    for path, linked in walk(folder):
        name = path.relative_to(folder).as_posix()
        if linked:
            raise ArtifactError(f"{path} is a link or no regular file; a bundle holds regular files only")
        if name != BUNDLE and name not in record.files:
            raise ArtifactError(f"{path} is not named in {BUNDLE}; remove it, or get the bundle again")
    for name, entry in record.files.items():
        path = folder / name
        if not path.is_file():
            raise ArtifactError(f"{path} is missing; get the bundle again")
        size = path.stat().st_size
        if size != entry.bytes:
            raise ArtifactError(f"{path} has {size:,} bytes, but {BUNDLE} says {entry.bytes:,}; get the bundle again")
    if hashes:
        for name, entry in record.files.items():
            if (sha256 := file_sha256(folder / name)) != entry.sha256:
                raise ArtifactError(
                    f"{folder / name} has sha256 {sha256[:12]}..., but {BUNDLE} says {entry.sha256[:12]}...; "
                    "get the bundle again"
                )


def file_stamps(folder: Path, record: BundleRecord) -> list[tuple[int, ...] | None]:
    """Device, inode, size and time of each of a bundle's files, which change when it is written; None: missing."""

    def stamp(name: str) -> tuple[int, ...] | None:
        try:
            status = os.lstat(folder / name)
        except (OSError, ValueError):
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    return [stamp(name) for name in (BUNDLE, *record.files)]


def walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Every file below a folder, and whether it is a link or not a regular file."""
    for parent, names, files in os.walk(folder, followlinks=False):
        if Path(parent) == folder:
            names[:] = [name for name in names if name not in HUB_FILES]
            files = [name for name in files if name not in HUB_FILES]
        for name in [*names, *files]:
            path = Path(parent) / name
            if path.is_symlink():
                yield path, True
            elif name in files:
                yield path, not path.is_file()


def folder_of(folder: Path, relative: str, record: BundleRecord) -> Path:
    """A folder inside a bundle, which must hold at least one file of its record."""
    if not relative:
        raise ArtifactError(f"{BUNDLE}: an entry has no path; expected a folder of the bundle")
    check_name(f"{relative}/LICENSE")
    if not any(name.startswith(f"{relative}/") for name in record.files):
        raise ArtifactError(f"{BUNDLE}: {quote(relative)} holds no file of the bundle")
    return folder / relative
