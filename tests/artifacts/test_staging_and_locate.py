"""Staging folders resume only the same work; artifacts are found by name or by path."""

from __future__ import annotations

import logging
import os
import resource

import pytest

from drafterforge.artifacts.atomic import atomic_file, save_json_atomic, write_bytes_atomic
from drafterforge.artifacts.folder import write_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.run import artifact_run
from drafterforge.artifacts.staging import drop_staging, open_staging, staging_folder
from drafterforge.errors import ArtifactError
from tests.tiny import TINY


def test_staging_keeps_its_files_when_settings_are_equal_and_is_emptied_otherwise(tmp_path, caplog):
    path = tmp_path / "sql"
    folder = open_staging(path, {"seed": 0, "sizes": (1, 2)})
    assert folder == staging_folder(path) == tmp_path / ".sql.partial"
    write_bytes_atomic(folder / "shard.arrow", b"data")
    (folder / ".shard.arrow.tmp-1-abc").write_bytes(b"half")
    open_staging(path, {"seed": 0, "sizes": [1, 2]})
    assert sorted(os.listdir(folder)) == ["config.json", "shard.arrow"]
    with caplog.at_level(logging.WARNING):
        open_staging(path, {"seed": 1, "sizes": [1, 2]})
    assert os.listdir(folder) == ["config.json"]
    assert "seed: 0 there, 1 now" in caplog.text
    caplog.clear()
    general, sql, python = (
        {"kind": "drafters", "name": name, "sha256": "ab" * 32} for name in ("general", "sql", "python")
    )
    open_staging(path, {"drafters": [general, sql]})
    open_staging(path, {"drafters": [general, python]})
    assert '(drafters[1].name: "sql" there, "python" now)' in caplog.text
    open_staging(path, {"drafters": [general]})
    assert '(drafters[1]: {"kind": "drafters", "name": "python"' in caplog.text
    drop_staging(path)
    assert os.listdir(tmp_path) == []


def test_unfinished_work_of_other_settings_is_only_replaced_if_asked_for(tmp_path):
    path = tmp_path / "sql"
    folder = open_staging(path, {"seed": 0}, replace=False)
    open_staging(path, {"seed": 1}, replace=False)  # nothing was done yet
    (folder / "shard.arrow").write_bytes(b"data")
    with pytest.raises(ArtifactError, match=r"work of other settings \(seed: 1 there, 2 now\); .*traces.name=OTHER"):
        open_staging(path, {"seed": 2}, replace=False, alternative="traces.name=OTHER")
    open_staging(path, {"seed": 1}, replace=False)
    assert sorted(os.listdir(folder)) == ["config.json", "shard.arrow"]
    open_staging(path, {"seed": 2})
    assert os.listdir(folder) == ["config.json"]
    drop_staging(path)


def test_staging_without_a_readable_config_is_emptied(tmp_path):
    folder = open_staging(tmp_path / "sql", {"seed": 0})
    for text in ("{", "[]", ""):
        (folder / "config.json").write_text(text)
        (folder / "shard.arrow").write_bytes(b"data")
        open_staging(tmp_path / "sql", {"seed": 0})
        assert os.listdir(folder) == ["config.json"]
    drop_staging(tmp_path / "sql")


def test_two_processes_do_not_share_a_staging_folder(tmp_path):
    open_staging(tmp_path / "sql", {})
    child = os.fork()
    if child == 0:  # inherits the descriptor but, like any other process, opens its own
        from drafterforge.artifacts import staging

        staging._staging_locks.clear()
        try:
            open_staging(tmp_path / "sql", {})
        except ArtifactError as error:
            os._exit(7 if "another drafterforge process" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    drop_staging(tmp_path / "sql")


def test_a_failed_atomic_write_keeps_the_old_file(tmp_path):
    save_json_atomic(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        save_json_atomic(tmp_path / "a.json", {"x": object()})
    with pytest.raises(TypeError):
        write_bytes_atomic(tmp_path / "a.json", "text, not bytes")
    assert os.listdir(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() == '{\n  "x": 1\n}\n'


def test_an_artifact_is_found_by_name_or_path_and_a_miss_lists_what_exists(tmp_path):
    find = (tmp_path, "tiny", "answers")
    hint = "drafterforge prepare-data domain=sql"
    with pytest.raises(ArtifactError, match=r"none yet\); type `drafterforge prepare-data domain=sql`"):
        find_artifact(*find, "sql", hint=hint)
    for name in ("math", "sql"):
        path = artifact_dir(*find, name)
        assert path == tmp_path / "tiny" / "answers" / name
        with write_artifact(path, kind="answers", name=name, target="tiny", target_fingerprint="f", config={}):
            pass
    assert find_artifact(*find, "sql") == path
    assert find_artifact(*find, str(path)) == path
    assert find_artifact(*find, path) == path
    with pytest.raises(ArtifactError, match=r"no answers named 'sgl'.*available: math, sql\); did you mean sql\?"):
        find_artifact(*find, "sgl", hint=hint)
    staging_folder(artifact_dir(*find, "chat")).mkdir()
    with pytest.raises(ArtifactError, match=r"'chat' are unfinished in .*\.chat\.partial; type their command again"):
        find_artifact(*find, "chat", hint=hint)
    with pytest.raises(ArtifactError, match="no answers at"):
        find_artifact(*find, tmp_path / "nowhere", hint=hint)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 201, "ä" * 101])
def test_a_name_that_is_no_plain_folder_name_is_refused(tmp_path, name):
    with pytest.raises(ArtifactError, match="name must be a plain folder name"):
        artifact_dir(tmp_path, "tiny", "answers", name)


def test_a_writer_deletes_what_killed_ones_left_and_no_other_file(tmp_path):
    for name in (".house.tar.tmp-1", ".house.tar.tmp-1-abc", ".house.tar2.tmp-1", ".other.tmp-1"):
        (tmp_path / name).write_bytes(b"half")
    with atomic_file(tmp_path / "house.tar") as running:
        write_bytes_atomic(tmp_path / "house.tar", b"first")  # of another process, which sees a locked file
        assert running.exists()
        running.write_bytes(b"second")
    assert sorted(os.listdir(tmp_path)) == [".house.tar2.tmp-1", ".other.tmp-1", "house.tar"]
    assert (tmp_path / "house.tar").read_bytes() == b"second"


def test_reuse_deletes_what_a_killed_writer_left(tmp_path):
    path, settings = tmp_path / "sql", {"seed": 0}
    with artifact_run(path, "answers", TINY, settings).write() as folder:
        (folder / "a.arrow").write_bytes(b"rows")
    for name in (".sql.old-1-abc", ".sql.partial", ".sql.tmp-1-abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rest").write_bytes(b"rest")
    assert artifact_run(path, "answers", TINY, settings).existing is not None
    assert os.listdir(tmp_path) == ["sql"]


def test_a_file_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    events = []
    real = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("sync"), real[0](descriptor)))
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("rename"), real[1](*paths)))
    with atomic_file(tmp_path / "a") as temporary:
        temporary.write_bytes(b"data")
    assert events == ["sync", "rename", "sync"]


def test_the_limit_on_file_sizes_is_named(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ArtifactError, match=r"a file exceeds the limit on file sizes \(ulimit -f"):
            write_bytes_atomic(tmp_path / "a", b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []
