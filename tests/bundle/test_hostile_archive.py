"""A hostile archive is refused before it costs memory, and leaves no file behind."""

from __future__ import annotations

import errno
import gzip
import io
import json
import shutil
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from drafterforge.assembly.bundles import open_bundle
from drafterforge.bundle.archive import pack, unpack, unpack_to_cache
from drafterforge.bundle.record import BUNDLE
from drafterforge.errors import DrafterforgeError
from tests.bundle.attacks import CONFIG, WEIGHTS, wrong_hash
from tests.bundle.conftest import rehash


def archive(path: Path, folder: Path, change) -> Path:
    """An archive of the bundle, with members changed or added."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in [BUNDLE, *sorted(json.loads((folder / BUNDLE).read_text())["files"])]:
            data = (folder / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            change(tar, member, data)
    return path


def as_link(tar, member, data):
    if member.name == CONFIG:
        member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/hosts", 0
        tar.addfile(member)
    else:
        tar.addfile(member, io.BytesIO(data))


def with_climber(tar, member, data):
    tar.addfile(member, io.BytesIO(data))
    if member.name == BUNDLE:
        evil = tarfile.TarInfo("../../evil.json")
        evil.size = 2
        tar.addfile(evil, io.BytesIO(b"{}"))


def twice(tar, member, data):
    tar.addfile(member, io.BytesIO(data))
    if member.name == CONFIG:
        tar.addfile(member, io.BytesIO(data))


def larger(tar, member, data):
    if member.name == CONFIG:
        data += b" " * 1000
        member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def without_one(tar, member, data):
    if member.name != CONFIG:
        tar.addfile(member, io.BytesIO(data))


ARCHIVES = {
    as_link: "a link or no regular file",
    with_climber: "not named in bundle.json",
    twice: "cannot be unpacked",
    larger: "but bundle.json says",
    without_one: "is missing",
}


@pytest.mark.parametrize("change", ARCHIVES, ids=lambda change: change.__name__)
def test_a_hostile_archive_is_refused_and_leaves_nothing(shared_bundle, tmp_path, monkeypatch, change):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    path = archive(tmp_path / "b.tar", shared_bundle, change)
    with pytest.raises(DrafterforgeError, match=ARCHIVES[change]):
        open_bundle(path)
    assert not list((tmp_path / "cache").rglob("*.json")) and not (tmp_path / "evil.json").exists()


def test_a_disk_that_fills_while_an_archive_is_unpacked_is_not_the_archive_s_fault(
    shared_bundle, tmp_path, monkeypatch
):
    pack(shared_bundle, path := tmp_path / "a.tar")
    monkeypatch.setattr("drafterforge.bundle.archive._extract", full)
    (tmp_path / "to").mkdir()
    with pytest.raises(OSError, match="No space left"):
        unpack(path, tmp_path / "to")


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_cut_archive_is_refused(shared_bundle, tmp_path):
    pack(shared_bundle, tmp_path / "b.tar")
    (tmp_path / "b.tar").write_bytes((tmp_path / "b.tar").read_bytes()[:50_000])
    (tmp_path / "to").mkdir()
    with pytest.raises(DrafterforgeError, match=r"is damaged|is missing|bytes, but"):
        unpack(tmp_path / "b.tar", tmp_path / "to")


def header_of(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar header that claims `size` bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def blocks(data: bytes) -> bytes:
    """Padded to whole blocks of a tar file."""
    return data + bytes(-len(data) % tarfile.BLOCKSIZE)


def pax(**values: str) -> bytes:
    """A pax header in front of a member."""
    lines = b""
    for key, value in values.items():
        line = f" {key}={value}\n".encode()
        size = len(line) + 1
        while size != len(line) + len(str(size)):
            size = len(line) + len(str(size))
        lines += str(size).encode() + line
    return header_of("././@PaxHeader", len(lines), tarfile.XHDTYPE) + blocks(lines)


def long_name_claims(path: Path) -> None:
    path.write_bytes(header_of("././@LongLink", 1 << 50, tarfile.GNUTYPE_LONGNAME) + bytes(2048))


def pax_claims(path: Path) -> None:
    path.write_bytes(header_of("././@PaxHeader", 1 << 50, tarfile.XHDTYPE) + bytes(2048))


def member_claims(path: Path) -> None:
    path.write_bytes(header_of(BUNDLE, 1 << 50) + bytes(2048))


def pax_size_claims(path: Path) -> None:
    path.write_bytes(pax(size=str(1 << 50)) + header_of(BUNDLE, 0) + bytes(2048))


def large_pax(path: Path) -> None:
    path.write_bytes(pax(comment="x" * (1 << 22)) + header_of(BUNDLE, 0) + bytes(2048))


def large_long_name(path: Path) -> None:
    name = header_of("././@LongLink", 1 << 22, tarfile.GNUTYPE_LONGNAME) + bytes(1 << 22)
    path.write_bytes(name + header_of(BUNDLE, 0) + bytes(2048))


def pax_without_end(path: Path) -> None:
    path.write_bytes(header_of("././@PaxHeader", 8, tarfile.XHDTYPE) + blocks(b"0 a=b\n") + bytes(2048))


def pax_backwards(path: Path) -> None:
    """The first length leads to the last byte, from where a reader that trusts lengths never comes away."""
    path.write_bytes(header_of("././@PaxHeader", 8, tarfile.XHDTYPE) + blocks(b"-1 a=b\nX") + bytes(2048))


def gnu_sparse(path: Path) -> None:
    path.write_bytes(header_of(BUNDLE, 0, tarfile.GNUTYPE_SPARSE) + bytes(2048))


def pax_sparse(path: Path) -> None:
    sparse_map = b"1000000\n" * (1 << 19)  # so many integers
    values = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": BUNDLE, "GNU.sparse.realsize": "0"}
    path.write_bytes(pax(**values) + header_of(BUNDLE, len(sparse_map)) + blocks(sparse_map) + bytes(1024))


def compressed(path: Path) -> None:
    path.write_bytes(gzip.compress(header_of(BUNDLE, 64 << 20) + bytes(64 << 20)))


BOMBS = {
    long_name_claims: "claims 1,125,899,906,842,624 bytes",
    pax_claims: "claims 1,125,899,906,842,624 bytes",
    member_claims: "claims 1,125,899,906,842,624 bytes",
    pax_size_claims: "claims 1,125,899,906,842,624 bytes",
    large_pax: "a header of 4,194,321 bytes for a name, expected at most 16,384",
    large_long_name: "a header of 4,194,304 bytes for a name, expected at most 16,384",
    pax_without_end: "cannot be unpacked",
    pax_backwards: "cannot be unpacked",
    gnu_sparse: "does not begin with bundle.json",
    pax_sparse: "does not begin with bundle.json",
    compressed: "is not a bundle; expected a folder",
}


@pytest.mark.parametrize("write", BOMBS, ids=lambda write: write.__name__)
def test_a_tar_file_costs_no_memory_before_it_is_refused(tmp_path, monkeypatch, write):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "bomb.tar")
    tracemalloc.start()
    try:
        with pytest.raises(DrafterforgeError, match=BOMBS[write]):
            open_bundle(tmp_path / "bomb.tar")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2 << 20, f"{most:,} bytes"


def test_names_too_long_for_a_ustar_header_are_unpacked(shared_bundle, tmp_path):
    folder = Path(shutil.copytree(shared_bundle, tmp_path / "tiny"))
    name = f"drafters/general/{'n' * 120}.txt"
    (folder / name).write_text("notes")
    rehash(folder, name)
    pack(folder, tmp_path / "pax.tar")
    archive(tmp_path / "gnu.tar", folder, lambda tar, member, data: tar.addfile(member, io.BytesIO(data)))
    for path in (tmp_path / "pax.tar", tmp_path / "gnu.tar"):
        (to := tmp_path / path.stem).mkdir()
        unpack(path, to)
        assert (to / name).read_text() == "notes"


def test_a_damaged_copy_of_an_archive_is_unpacked_again(shared_bundle, served, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    pack(shared_bundle, tmp_path / "b.tar")
    (folder,) = {unpack_to_cache(tmp_path / "b.tar"), unpack_to_cache(tmp_path / "b.tar")}
    wrong_hash(folder)
    assert unpack_to_cache(tmp_path / "b.tar") == folder
    assert (folder / WEIGHTS).read_bytes() == (shared_bundle / WEIGHTS).read_bytes()
    open_bundle(tmp_path / "b.tar", target=served)
