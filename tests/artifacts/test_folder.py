"""Law 7: killed at any byte, an artifact is the old one, the new one, or a clear error."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from drafterforge.artifacts.folder import (
    delete_artifact,
    is_complete,
    open_artifact,
    reuse_artifact,
    write_artifact,
)
from drafterforge.artifacts.manifest import MANIFEST, SCHEMA_VERSION, Manifest
from drafterforge.errors import ArtifactError

FILE_EVENTS = {"open", "fcntl.flock", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link"}
ANSWERS = {"kind": "answers", "name": "sql", "target": "tiny", "target_fingerprint": "f00d"}


def write(path: Path, text: str = "new", **options) -> None:
    with write_artifact(path, **ANSWERS, config={"text": text}, **options) as folder:
        (folder / "deep").mkdir()
        for name in ("a.bin", "deep/b.bin"):
            with open(folder / name, "wb") as file:
                file.write(text.encode() * 100)
            with open(folder / name, "ab") as file:  # a kill before this leaves half a file
                file.write(name.encode())


def read(path: Path) -> str:
    manifest = open_artifact(path, "answers", target_fingerprint="f00d")
    text = manifest.config["text"]
    assert (path / "a.bin").read_bytes() == text.encode() * 100 + b"a.bin"
    assert (path / "deep/b.bin").read_bytes() == text.encode() * 100 + b"deep/b.bin"
    return text


def killed_at(event: int, work) -> bool:
    """Runs `work` in a child that dies before its n-th file event; False if it ended earlier."""
    child = os.fork()
    if child == 0:
        left = event

        def hook(name: str, _args: tuple) -> None:
            nonlocal left
            if name in FILE_EVENTS:
                left -= 1
                if left < 0:
                    os._exit(9)

        with contextlib.suppress(BaseException):
            sys.addaudithook(hook)
            work()
            os._exit(0)
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), "the work failed instead of being killed"
    return status == 9


def test_kill_at_any_file_event_leaves_a_whole_artifact_or_a_clear_error(tmp_path):
    event, opened = 0, 0
    while True:
        path = tmp_path / f"{event}" / "sql"
        killed = killed_at(event, lambda path=path: write(path))
        if is_complete(path, verify=True):
            assert read(path) == "new"
            opened += 1
        else:
            assert killed
            with pytest.raises(ArtifactError, match=r"no answers at .*prepare-data"):
                read(path)
            write(path)
            assert read(path) == "new"
            assert os.listdir(path.parent) == ["sql"]
        if not killed:
            break
        event += 1
    assert event > 15 and opened >= 1


@pytest.mark.slow
def test_kill_while_replacing_leaves_the_old_or_the_new_artifact(tmp_path):
    event, seen = 0, set()
    while True:
        path = tmp_path / f"{event}" / "sql"
        write(path, "old")
        killed = killed_at(event, lambda path=path: write(path, "new", replace=True))
        seen.add(read(path))
        write(path, "new", replace=True)
        assert read(path) == "new"
        assert os.listdir(path.parent) == ["sql"]
        if not killed:
            break
        event += 1
    assert seen == {"old", "new"}


def test_kill_while_deleting_leaves_a_whole_artifact_or_none_and_deleting_again_leaves_nothing(tmp_path):
    event, seen = 0, set()
    while True:
        path = tmp_path / f"{event}" / "sql"
        write(path)
        killed = killed_at(event, lambda path=path: delete_artifact(path))
        assert is_complete(path, verify=True) == path.exists()
        seen.add(path.exists())
        delete_artifact(path)
        assert os.listdir(path.parent) == []
        if not killed:
            break
        event += 1
    assert event > 5 and seen == {True, False}


def test_an_exception_leaves_nothing_behind_and_keeps_the_old_artifact(tmp_path):
    def fail(path: Path, error: BaseException, **options) -> None:
        with write_artifact(path, **ANSWERS, config={}, **options) as folder:
            (folder / "half.bin").write_bytes(b"half")
            raise error

    for error in (ValueError("bad"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(tmp_path / "sql", error)
        assert os.listdir(tmp_path) == []
    write(tmp_path / "sql", "old")
    with pytest.raises(ValueError):
        fail(tmp_path / "sql", ValueError("bad"), replace=True)
    assert os.listdir(tmp_path) == ["sql"]
    assert read(tmp_path / "sql") == "old"


@pytest.mark.parametrize("cause", ["/dev/full", "error number", "text"])
def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path, cause):
    if cause == "/dev/full" and not os.path.exists(cause):
        pytest.skip("no /dev/full here")
    with (
        pytest.raises(ArtifactError, match=r"the disk is full: cannot write .*sql; free some space"),
        write_artifact(tmp_path / "sql", **ANSWERS, config={}) as folder,
    ):
        (folder / "half.bin").write_bytes(b"half")
        if cause == "/dev/full":
            with open(cause, "wb") as file:
                file.write(b"x" * 100_000)
        elif cause == "error number":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise RuntimeError("I/O error: No space left on device (os error 28)")  # as safetensors does
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.bin", "deep/b.bin", MANIFEST])
@pytest.mark.parametrize("damage", ["missing", "truncated", "longer", "flipped", "empty"])
def test_every_damaged_file_is_found_and_named(tmp_path, name, damage):
    path = tmp_path / "sql"
    write(path)
    file = path / name
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "flipped":
        data[data.index(b"e")] ^= 2
        file.write_bytes(data)
    else:
        file.write_bytes({"truncated": data[:-3], "longer": data + b"x", "empty": b""}[damage])
    with pytest.raises(ArtifactError, match=r"; (type|make it again)") as error:
        open_artifact(path, "answers")
    assert name in str(error.value) and "\n" not in str(error.value)
    assert not is_complete(path, verify=True)
    with pytest.raises(ArtifactError):
        reuse_artifact(path, "answers", config={}, target="tiny", target_fingerprint="f00d")


def test_a_forged_hash_is_quoted_in_part(tmp_path):
    write(tmp_path / "sql")
    manifest = Manifest.read(tmp_path / "sql")
    files = {name: entry | {"sha256": "x" * 5000} for name, entry in manifest.files.items()}
    (tmp_path / "sql" / MANIFEST).write_bytes(replace(manifest, files=files).to_json())
    with pytest.raises(ArtifactError, match=r"a\.bin is damaged: its sha256 is") as error:
        open_artifact(tmp_path / "sql", "answers")
    assert len(str(error.value)) < 600 + len(str(tmp_path))


def test_a_forged_file_name_that_is_too_long_is_one_line(tmp_path):
    write(tmp_path / "sql")
    manifest = Manifest.read(tmp_path / "sql")
    files = {**manifest.files, "x" * 300: {"sha256": "0" * 64, "bytes": 1}}
    (tmp_path / "sql" / "manifest.json").write_bytes(replace(manifest, files=files).to_json())
    with pytest.raises(ArtifactError, match=r"/x+\.\.\. is missing; type"):
        read(tmp_path / "sql")


def test_a_damaged_artifact_can_be_replaced(tmp_path):
    write(tmp_path / "sql", "old")
    (tmp_path / "sql" / "a.bin").unlink()
    write(tmp_path / "sql", "new", replace=True)
    assert read(tmp_path / "sql") == "new"


def test_an_artifact_for_another_target_names_both_fingerprints(tmp_path):
    write(tmp_path / "sql")
    with pytest.raises(ArtifactError, match=r"f00d.*beef; type .*overwrite=true"):
        open_artifact(tmp_path / "sql", "answers", target_fingerprint="beef")
    with pytest.raises(ArtifactError, match=r"f00d.*beef; type target=tiny, or `.*` to make one for this target"):
        open_artifact(tmp_path / "sql", "answers", target_fingerprint="beef", target="big")
    with pytest.raises(ArtifactError, match=r"'tiny', but the target is 'big'"):
        open_artifact(tmp_path / "sql", "answers", target="big")
    with pytest.raises(ArtifactError, match=r"holds answers 'sql', expected drafters"):
        open_artifact(tmp_path / "sql", "drafters")


def test_a_manifest_of_a_newer_schema_is_refused(tmp_path):
    write(tmp_path / "sql")
    file = tmp_path / "sql" / MANIFEST
    text = file.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {SCHEMA_VERSION + 1}')
    file.write_text(text)
    with pytest.raises(ArtifactError, match=r"schema version 2.*pip install --upgrade"):
        open_artifact(tmp_path / "sql", "answers")


def test_a_manifest_reads_back_as_written_and_its_digest_names_its_content(tmp_path):
    path = tmp_path / "sql"
    write(path)
    manifest = Manifest.read(path)
    (path / MANIFEST).write_bytes(manifest.to_json())
    assert Manifest.read(path) == manifest
    assert Manifest.read(path).digest == manifest.digest
    assert replace(manifest, name="other").digest != manifest.digest
    config = {"betas": (0.9, 0.95), "path": Path("x")}
    metrics = {}
    with write_artifact(
        tmp_path / "d",
        **ANSWERS | {"kind": "drafters"},
        config=config,
        parents=[manifest],
        metrics=metrics,
    ):
        metrics["loss"] = float("nan")
    child = open_artifact(tmp_path / "d", "drafters")
    assert child.parents == [{"kind": "answers", "name": "sql", "sha256": manifest.digest}]
    assert child.config == {"betas": [0.9, 0.95], "path": "x"} and child.metrics == {"loss": None}


def test_an_artifact_is_reused_only_when_its_settings_are_equal(tmp_path):
    path, target = tmp_path / "sql", {"target": "tiny", "target_fingerprint": "f00d"}
    assert reuse_artifact(path, "answers", config={"text": "new"}, **target) is None
    write(path)
    assert reuse_artifact(path, "answers", config={"text": "new"}, **target).name == "sql"
    with pytest.raises(ArtifactError, match=r'text: "new" there, "x" now.*overwrite=true'):
        reuse_artifact(path, "answers", config={"text": "x"}, **target)
    with pytest.raises(ArtifactError, match=r'text: "new" there, \["abababab\.\.\.", "cdcdcdcd\.\.\."\] now'):
        reuse_artifact(path, "answers", config={"text": ["ab" * 32, "cd" * 32]}, **target)
    assert reuse_artifact(path, "answers", config={"text": "x"}, overwrite=True, **target) is None
    with pytest.raises(ArtifactError, match="exists already; type overwrite=true"):
        write(path)


@pytest.mark.parametrize("key", ["every", "read_interval"])
def test_a_recorded_key_that_was_removed_counts_only_if_it_meant_something_else(tmp_path, key):
    for cycles in (1, 3):
        with write_artifact(tmp_path / str(cycles), **ANSWERS, config={"pool": {"selector": "ucb1", key: cycles}}):
            pass
    settings = {"config": {"pool": {"selector": "ucb1"}}, "target": "tiny", "target_fingerprint": "f00d"}
    assert reuse_artifact(tmp_path / "1", "answers", **settings).name == "sql"
    with pytest.raises(ArtifactError, match=rf"pool\.{key}: 3 there, null now"):
        reuse_artifact(tmp_path / "3", "answers", **settings)


def test_a_folder_that_is_not_ours_is_never_replaced(tmp_path):
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "thesis.tex").write_text("precious")
    with pytest.raises(ArtifactError, match="not a drafterforge artifact"):
        write(tmp_path / "sql", replace=True)
    assert os.listdir(tmp_path) == ["sql"]


def test_a_live_writer_is_not_taken_for_a_dead_one(tmp_path):
    path = tmp_path / "sql"
    with write_artifact(path, **ANSWERS, config={}) as folder:
        (folder / "mine.bin").write_bytes(b"mine")
        write(path)  # a second writer clears stale folders, and is first
        assert (folder / "mine.bin").read_bytes() == b"mine"
        path.rename(tmp_path / "other")
    assert open_artifact(path, "answers").files.keys() == {"mine.bin"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parents": [7]}, "each of its parents must have a kind, a name and a sha256"),
        ({"parents": [{"kind": "answers", "name": None, "sha256": ""}]}, "each of its parents"),
        ({"files": {"../../outside": {"sha256": "", "bytes": 1}}}, "is no path inside the folder"),
        ({"files": {"/etc/hosts": {"sha256": "", "bytes": 1}}}, "is no path inside the folder"),
        ({"files": {"a": {"sha256": "", "bytes": "1"}}}, "files.a must have a text sha256 and a number of bytes"),
        ({"name": "\ud800"}, "it is not JSON, or nested too deeply"),
        ({"x" * 9999: 1}, r"unknown keys: x{97}\.\.\."),
    ],
)
def test_a_forged_manifest_is_one_line(tmp_path, changes, reason):
    write(tmp_path / "sql")
    path = tmp_path / "sql" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ArtifactError, match=reason):
        Manifest.read(tmp_path / "sql")


def test_a_deeply_nested_manifest_is_one_line(tmp_path):
    (tmp_path / MANIFEST).write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ArtifactError, match="nested too deeply"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("depth", [480, 500, 700, 900, 100_000])
def test_a_manifest_nested_too_deeply_is_damaged(tmp_path, depth):
    folder = tmp_path / "x"
    folder.mkdir()
    content = {field.name: field.type for field in fields(Manifest)} | {"config": "?", "files": {}, "parents": []}
    content |= {"metrics": {}, "schema_version": 1, "digest": "x"}
    text = json.dumps(content).replace('"?"', '{"a": ' * depth + "1" + "}" * depth)
    (folder / MANIFEST).write_text(text)
    with pytest.raises(ArtifactError, match="is damaged"):
        Manifest.read(folder)
