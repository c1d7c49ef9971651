"""The files of a bundle on disk are exactly those of its record: no more, no less, nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from drafterforge.artifacts.atomic import file_sha256
from drafterforge.bundle.record import BUNDLE, BundleRecord
from drafterforge.errors import ArtifactError, quote

SUFFIXES = (".json", ".safetensors", ".md", ".txt", ".jinja", ".model", ".png")  # nothing that a reader would run
BARE = ("LICENSE", "NOTICE")
HUB_LEFTOVERS = (".cache", ".gitattributes", ".git", ".huggingface")  # what clones and downloads add at the top


def check_name(name: str) -> None:
    """Refuse a path that leaves its folder, is spelled in two ways, or is of a type that no bundle holds."""
    path = PurePosixPath(name)
    plain = name and not path.is_absolute() and path.as_posix() == name and "\\" not in name and "\0" not in name
    if not plain or any(part in ("..", ".") or part.startswith(".") for part in path.parts) or len(name) > 500:
        raise ArtifactError(f"{BUNDLE} names the file {quote(name)}; wanted a plain path inside the bundle")
    if path.suffix not in SUFFIXES and path.name not in BARE:
        raise ArtifactError(
            f"{BUNDLE} names the file {quote(name)}; a bundle holds {', '.join(SUFFIXES)} files, no pickles or programs"
        )


def check_files(folder: Path, record: BundleRecord, hashes: bool = True) -> None:
    """Refuse a bundle with a missing, changed, foreign or linked file.

    hashes: also read every file; sizes are compared first, so that a file far larger than declared costs nothing.
    """
    for name in record.files:
        check_name(name)
    for path, linked in walk(folder):
        name = path.relative_to(folder).as_posix()
        if linked:
            raise ArtifactError(f"{path} is a link or no plain file; a bundle holds plain files only")
        if name != BUNDLE and name not in record.files:
            raise ArtifactError(f"{path} is not named in {BUNDLE}; remove it, or get the bundle again")
    for name, wanted in record.files.items():
        path = folder / name
        if not path.is_file():
            raise ArtifactError(f"{path} is missing; get the bundle again")
        size = path.stat().st_size
        if size != wanted.bytes:
            raise ArtifactError(f"{path} has {size:,} bytes, but {BUNDLE} says {wanted.bytes:,}; get the bundle again")
    if hashes:
        for name, wanted in record.files.items():
            if (found := file_sha256(folder / name)) != wanted.sha256:
                raise ArtifactError(
                    f"{folder / name} has sha256 {found[:12]}..., but {BUNDLE} says {wanted.sha256[:12]}...; "
                    "get the bundle again"
                )


def stamps(folder: Path, record: BundleRecord) -> list[tuple[int, ...] | None]:
    """What changes when one of a bundle's files is replaced or written to; None: not there."""

    def stamp(name: str) -> tuple[int, ...] | None:
        try:
            found = os.lstat(folder / name)
        except (OSError, ValueError):
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    return [stamp(name) for name in (BUNDLE, *record.files)]


def walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Every file below a folder, and whether it is a link or something special."""
    for parent, names, files in os.walk(folder, followlinks=False):
        here = Path(parent)
        if here == folder:
            names[:] = [name for name in names if name not in HUB_LEFTOVERS]
            files = [name for name in files if name not in HUB_LEFTOVERS]
        for name in [*names, *files]:
            path = here / name
            if path.is_symlink():
                yield path, True
            elif name in files:
                yield path, not path.is_file()


def folder_of(folder: Path, relative: str, record: BundleRecord) -> Path:
    """A folder inside a bundle, which must hold at least one file of its record."""
    if not relative:
        raise ArtifactError(f"{BUNDLE}: an entry has no path; wanted a folder of the bundle")
    check_name(f"{relative}/LICENSE")
    if not any(name.startswith(f"{relative}/") for name in record.files):
        raise ArtifactError(f"{BUNDLE}: {quote(relative)} holds no file of the bundle")
    return folder / relative
