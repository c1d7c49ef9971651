"""A stream stays under its bound, loses and doubles nothing, and says in one line what is wrong with it."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from drafterforge.artifacts.atomic import ASKED_S, lock_folder
from drafterforge.data import stream, stream_reader
from drafterforge.data.answers import Answer, AnswerRows
from drafterforge.data.served import ServedAnswer, encode_served, served_shards
from drafterforge.data.stream import (
    ERASE,
    Retention,
    StreamRecord,
    StreamWriter,
    erase_stream,
    finish_stream,
    used_bytes,
)
from drafterforge.data.stream_reader import StreamReader
from drafterforge.errors import ArtifactError, ConfigError

LIMIT, TOKENS, HIDDEN = 200_000, 20, 8  # an answer has about 3 kB


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(stream, "POLL_S", 0.005)
    monkeypatch.setattr(stream_reader, "POLL_S", 0.005)


def answer(number: int, tokens: int = TOKENS) -> ServedAnswer:
    ids = [number, *range(1, tokens)]
    row = Answer(f"a{number}", "", "", "train", ids, [0] * 5 + [1] * (tokens - 5), 5, tokens - 5, True)
    features = torch.full((tokens - 1, 3 * HIDDEN), float(number))
    return ServedAnswer(row, features, outputs=features[:, :HIDDEN])


def writer_of(folder: Path, limit: int = LIMIT, flush_s: float = 0.02, **more) -> StreamWriter:
    return StreamWriter(folder, limit, [2, 3, 4], flush_s=flush_s, **more)


def write(folder: Path, numbers, limit: int = LIMIT, wait_s: float = 10.0) -> StreamWriter:
    """Append answers as the connector does: while there is room."""
    writer = writer_of(folder, limit)
    for number in numbers:
        until = time.monotonic() + wait_s
        while not writer.has_room and time.monotonic() < until:
            time.sleep(0.002)
        if not writer.has_room:
            return writer
        writer.add(number, answer(number))
    writer.close(wait_s)
    return writer


def numbers_of(paths) -> list[int]:
    text, outputs = paths
    with safe_open(outputs, "pt") as file:
        for row in AnswerRows([text]):
            features = file.get_tensor(f"{row.id}.features")
            assert features.dtype == torch.float32 and set(features.flatten().tolist()) == {float(row.input_ids[0])}
        return [row.input_ids[0] for row in AnswerRows([text])]


def read_all(reader: StreamReader, first: int = 0) -> list[int]:
    numbers, shard = [], first
    while (paths := reader.shard(shard)) is not None:
        numbers += numbers_of(paths)
        shard += 1
        reader.release(shard)
    return numbers


def test_only_its_user_reads_a_stream(tmp_path):
    write(tmp_path / "ring", range(2))
    assert stat.S_IMODE((tmp_path / "ring").stat().st_mode) == 0o700


def test_many_times_its_bound_passes_through_a_stream_once_and_in_order(tmp_path, monkeypatch):
    sizes, real = [], stream.write_bytes_atomic

    def measured(path: Path, data: bytes) -> None:
        real(path, data)
        sizes.append(used_bytes(tmp_path))

    monkeypatch.setattr(stream, "write_bytes_atomic", measured)
    thread = threading.Thread(target=lambda: (write(tmp_path, range(400)), finish_stream(tmp_path)))
    thread.start()
    until = time.monotonic() + 10
    while (not sizes or max(sizes) < LIMIT / 2) and time.monotonic() < until:  # the reader comes late
        time.sleep(0.01)
    numbers = read_all(StreamReader(tmp_path, "reader"))
    thread.join()
    assert numbers == list(range(400))
    assert LIMIT / 2 < max(sizes) <= LIMIT and used_bytes(tmp_path) == 0


def test_a_writer_waits_while_the_folder_is_full_and_goes_on_when_a_shard_is_released(tmp_path):
    writer = write(tmp_path, range(400), wait_s=0.3)
    assert not writer.has_room and writer.is_full and LIMIT * 0.8 < used_bytes(tmp_path) <= LIMIT
    shards, reader = StreamRecord.read(tmp_path).shards, StreamReader(tmp_path, "reader")
    assert reader.shard(0) and StreamRecord.read(tmp_path).shards == shards
    reader.release(2)
    until = time.monotonic() + 10
    while StreamRecord.read(tmp_path).shards == shards and time.monotonic() < until:
        time.sleep(0.01)
    assert StreamRecord.read(tmp_path).shards > shards and used_bytes(tmp_path) <= LIMIT
    writer.close(5)


def test_a_shard_is_deleted_once_all_readers_have_released_it(tmp_path):
    write(tmp_path, range(30))
    first, second = (StreamReader(tmp_path, name, 2) for name in ("first", "second"))
    first.release(2)
    assert (tmp_path / "shard-00000000.arrow").exists()
    second.release(1)
    assert not list(tmp_path.glob("shard-00000000.*")) and (tmp_path / "shard-00000001.arrow").exists()
    with pytest.raises(ArtifactError, match=r"shard 0 of .* was deleted.*data.stream_readers"):
        first.shard(0)


# the commit points of a shard: its two files, the record; a kill before each of them
@pytest.mark.parametrize("kill_at", range(4))
def test_a_killed_writer_started_again_writes_what_is_missing_once(tmp_path, monkeypatch, kill_at):
    real_bytes, real_json, left = stream.write_bytes_atomic, stream.save_json_atomic, [3 + 3 * 2 + kill_at]

    def dying(real):
        def act(path: Path, content) -> None:
            left[0] -= 1
            if left[0] <= 0:
                if isinstance(content, bytes):
                    path.with_name(f".{path.name}.tmp-1-ab").write_bytes(content[:9])
                raise SystemExit  # ends the thread as a kill ends the process
            real(path, content)

        return act

    with monkeypatch.context() as patch:
        patch.setattr(stream, "write_bytes_atomic", dying(real_bytes))
        patch.setattr(stream, "save_json_atomic", dying(real_json))
        killed = writer_of(tmp_path)
        for number in (*range(0, 40, 2), *range(1, 40, 2)):
            killed.add(number, answer(number))
        killed.thread.join(10)
        killed.close(1)
    record = StreamRecord.read(tmp_path)
    assert 0 < record.answers < 40
    missing = [number for number in range(40) if not record.has(number)]
    assert len(missing) == 40 - record.answers
    write(tmp_path, missing)
    finish_stream(tmp_path)
    assert not list(tmp_path.glob(".shard-*"))
    assert sorted(read_all(StreamReader(tmp_path, "reader"))) == list(range(40))


def test_a_killed_reader_started_again_finds_every_shard_that_it_did_not_release(tmp_path):
    write(tmp_path, range(60))
    finish_stream(tmp_path)
    killed = StreamReader(tmp_path, "reader")
    before = numbers_of(killed.shard(0))
    killed.shard(1)
    killed.release(1)
    again = StreamReader(tmp_path, "reader")
    assert before + read_all(again, again.released) == list(range(60))


def test_a_writer_stops_waiting_once_its_readers_have_finished(tmp_path):
    writer = write(tmp_path, range(400), wait_s=0.3)
    StreamReader(tmp_path, "reader").finish()
    until = time.monotonic() + 10
    while not writer.has_room and time.monotonic() < until:
        time.sleep(0.01)
    assert writer.has_room
    writer.close(5)


def test_a_reader_that_has_finished_stops_neither_the_writer_nor_the_other_reader(tmp_path):
    """Four times the bound; the first reader ends early and is opened again, as by the same command."""
    numbers = []

    def read() -> None:
        numbers.extend(read_all(StreamReader(tmp_path, "second", 2)))

    write(tmp_path, range(10)).close(5)
    StreamReader(tmp_path, "first", 2).finish()
    StreamReader(tmp_path, "first", 2)
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    writer = write(tmp_path, range(10, 250))
    until = time.monotonic() + 30
    while writer.pending_bytes and time.monotonic() < until:  # closing writes only as far as there is room
        time.sleep(0.01)
    writer.close(5)
    finish_stream(tmp_path)
    reading.join(30)
    assert numbers == list(range(250)) and used_bytes(tmp_path) == 0


def test_a_finished_reader_that_is_opened_again_needs_shards_only_once_it_reads(tmp_path):
    write(tmp_path, range(10))
    finish_stream(tmp_path)
    StreamReader(tmp_path, "reader").finish()
    again = StreamReader(tmp_path, "reader")
    assert stream.readers_finished(tmp_path)
    assert again.shard(again.released) is None and not stream.readers_finished(tmp_path)


def test_the_numbers_of_a_server_follow_those_before(tmp_path):
    for _ in range(2):
        writer = writer_of(tmp_path)
        for number in range(3):
            writer.add(-1, answer(number))
        writer.close(5)
    record = StreamRecord.read(tmp_path)
    assert (record.answers, record.below, record.more) == (6, 6, [])


def test_a_writer_waits_for_a_lock_that_is_held_for_a_moment(tmp_path):
    lock = lock_folder(tmp_path)  # as where `learn status` asks whether a server records
    threading.Timer(ASKED_S / 2, os.close, [lock]).start()
    writer_of(tmp_path).close(5)


def test_mistakes_are_one_line(tmp_path):
    write(tmp_path / "a", range(3)).close(5)
    with pytest.raises(ConfigError, match="another process writes to the stream"):
        first = writer_of(tmp_path / "b")
        writer_of(tmp_path / "b")
    first.close(5)
    with pytest.raises(ArtifactError, match="streams other answers: its labels are"):
        writer_of(tmp_path / "a", labels={"prompts": "others"})
    large = writer_of(tmp_path / "c")
    large.add(0, answer(0, tokens=1000))
    large.thread.join(5)
    with pytest.raises(ArtifactError, match=r"an answer of .* GB is too large for data.stream_gb=.* type data.str"):
        large.add(1, answer(1))
    with pytest.raises(ArtifactError, match=r"the writer of .* failed: an answer of"):
        StreamReader(tmp_path / "c", "reader").shard(0)
    writer = write(tmp_path / "d", range(400), wait_s=0.3)
    reader = StreamReader(tmp_path / "d", "reader")
    with pytest.raises(ConfigError, match=r"is full of shards that one step of training reads.*data.stream_gb=0.0004"):
        for shard in range(100):
            reader.shard(shard)
    writer.close(5)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "stream.json").write_text("{")
    with pytest.raises(ArtifactError, match="is no record of a stream"):
        StreamReader(tmp_path / "e", "reader")


@pytest.mark.parametrize("key", ["limit_bytes", "taps", "labels", "shards", "below", "more"])
def test_a_forged_record_of_a_stream_is_refused(tmp_path, key):
    write(tmp_path, range(2)).close(5)
    path = tmp_path / "stream.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "x"}))
    with pytest.raises(ArtifactError, match=rf"stream\.json\.{key} is 'x', expected"):
        StreamRecord.read(tmp_path)


def ring_of(
    folder: Path, limit: int = LIMIT, max_age_s: float = 1e6, labels: dict | None = None, **more
) -> StreamWriter:
    return writer_of(folder, limit, labels=labels, retention=Retention(max_age_s, **more))


def ring_numbers(folder: Path) -> list[int]:
    return [row.input_ids[0] for _, rows in served_shards(folder) for row in rows]


def add_all(writer: StreamWriter, numbers) -> None:
    for number in numbers:
        while not writer.has_room:
            time.sleep(0.002)
        writer.add(-1, answer(number))


def test_a_writer_with_a_retention_never_waits_and_deletes_the_oldest(tmp_path):
    writer = ring_of(tmp_path)
    add_all(writer, range(300))
    writer.close(10)
    numbers = ring_numbers(tmp_path)
    assert 20 < len(numbers) < 150 and numbers == list(range(300 - len(numbers), 300))
    assert used_bytes(tmp_path) <= LIMIT and StreamRecord.read(tmp_path).answers == 300


def test_shards_leave_when_they_are_too_old(tmp_path, monkeypatch):
    writer = ring_of(tmp_path)
    add_all(writer, range(10))
    writer.close(10)
    long_ago = time.time() - 100
    for path in tmp_path.glob("shard-*"):
        os.utime(path, (long_ago, long_ago))
    monkeypatch.setattr(stream, "TIDY_S", 0.01)
    writer = ring_of(tmp_path, max_age_s=50)
    assert ring_numbers(tmp_path) == []
    add_all(writer, [11])
    writer.close(10)
    assert ring_numbers(tmp_path) == [11]


def test_a_ring_takes_answers_after_a_reader_has_finished_and_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "RETRY_S", 0.0)
    writer = ring_of(tmp_path)
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "a.json").write_text(json.dumps({"finished": True, "readers": 1, "next": 0}))
    add_all(writer, [1])
    writer.flush()
    write = writer._write
    monkeypatch.setattr(writer, "_write", lambda part: 1 / 0)
    add_all(writer, [2])
    writer.flush()
    assert writer.record.error == "division by zero"
    monkeypatch.setattr(writer, "_write", write)
    add_all(writer, [3])
    writer.close(10)
    assert ring_numbers(tmp_path) == [1, 3] and StreamRecord.read(tmp_path).error == ""
    assert StreamRecord.read(tmp_path).more == []  # it does not grow by all that follows what was lost


def test_erasing_deletes_all_shards_and_what_is_pending_also_while_a_writer_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "TIDY_S", 0.01)
    erased = []
    writer = ring_of(tmp_path, erased=lambda: erased.append(True))
    add_all(writer, range(20))
    writer.flush_s = 60.0
    add_all(writer, [20])
    erase_stream(tmp_path)
    assert erased == [True] and used_bytes(tmp_path) == 0
    add_all(writer, [21])
    writer.close(10)
    assert ring_numbers(tmp_path) == [21]
    erase_stream(tmp_path)
    assert used_bytes(tmp_path) == 0 and not (tmp_path / ERASE).exists()


def test_the_record_does_not_grow_after_answers_were_erased_before_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "TIDY_S", 0.01)
    writer = ring_of(tmp_path)
    add_all(writer, range(20))
    writer.flush()
    writer.flush_s = 60.0
    add_all(writer, range(3))
    erase_stream(tmp_path)
    writer.flush_s = 0.0
    add_all(writer, range(20))
    writer.close(10)
    assert StreamRecord.read(tmp_path).answers == 40 and StreamRecord.read(tmp_path).more == []


def test_a_writer_that_was_killed_while_it_erased_goes_on_erasing(tmp_path):
    writer = ring_of(tmp_path)
    add_all(writer, range(20))
    writer.close(10)
    (tmp_path / ERASE).touch()
    writer = ring_of(tmp_path)
    writer.close(10)
    assert used_bytes(tmp_path) == 0 and not (tmp_path / ERASE).exists()


def test_a_writer_that_has_failed_still_erases_and_forgets_its_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "TIDY_S", 0.01)
    writer = ring_of(tmp_path)
    add_all(writer, range(20))
    writer.flush()

    def fail(*args) -> None:
        raise ArtifactError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(stream, "write_bytes_atomic", fail)
        patch.setattr(stream, "save_json_atomic", fail)
        writer.add(-1, answer(20))
        until = time.monotonic() + 10
        while not writer.record.error and time.monotonic() < until:
            time.sleep(0.01)
    with pytest.raises(ArtifactError, match="the disk is full"):
        writer.add(-1, answer(21))
    erasing = threading.Thread(target=erase_stream, args=(tmp_path,), daemon=True)
    erasing.start()
    erasing.join(5)
    assert not erasing.is_alive() and used_bytes(tmp_path) == 0
    writer.close(5)


def test_mistakes_of_a_ring_name_the_key_of_its_folder(tmp_path):
    writer = ring_of(tmp_path)
    with pytest.raises(ConfigError, match=r"type learn\.folder=OTHER"):
        ring_of(tmp_path)
    writer.close(5)
    with pytest.raises(ArtifactError, match=r"type learn\.folder=OTHER, or delete it"):
        ring_of(tmp_path, labels={"target": "another"})


def test_a_shard_with_two_answers_of_one_id_is_refused():
    with pytest.raises(ArtifactError, match="2 answers of a shard have the id 'a1', by which features are stored"):
        encode_served([answer(1), answer(2), answer(1)])
