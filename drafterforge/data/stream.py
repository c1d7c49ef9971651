"""Streams: bounded folders through which answers with features reach trainers, as a ring of shards.

A stream is a recording (`drafterforge.data.served`) with a bound: one writer appends numbered shards.  While the folder
is full, the writer of `prepare-data` waits, and a shard is deleted once every reader has released it or has finished;
`serve` deletes its oldest shards instead (`Retention`).

    stream.json         the writer's record: bound, prompts, and what is complete; the one commit point of the writer
    shard-N.arrow       answers
    shard-N.safetensors their features and last layer's outputs, in the dtype of the engine
    readers/NAME.json   the first shard that a reader needs, unless it has finished; the commit point of the reader
    done                the writer has written all of its answers
    erase               `serve` is asked to delete all of its shards; it does, and deletes this file

A shard exists for readers once `stream.json` counts it.  Both records are replaced atomically, so whichever side is
killed, at any moment: a writer that is started again writes each answer that `stream.json` does not list, once, and
overwrites a shard that it did not count; a reader that is started again finds every shard from its record on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import (
    ASKED_S,
    is_locked,
    lock_folder,
    report_write_errors,
    save_json_atomic,
    write_bytes_atomic,
)
from drafterforge.artifacts.json_input import parse_as
from drafterforge.data.served import ServedAnswer, encode_served
from drafterforge.errors import ArtifactError, ConfigError, shorten

log = logging.getLogger(__name__)
GB = 10**9
MB = 10**6
SHARD_BYTES = 64 * MB  # a shard is written at this size, or at 1/16 of the bound
PARTS = 16  # shards of a full folder, at least
FLUSH_S = 5.0  # seconds that finished answers wait for their shard at most
POLL_S = 0.2
RETRY_S = 60.0  # after an error of a writer with a retention
TIDY_S, AGE_S = 1.0, 60.0  # between two looks of a writer with a `Retention` for `erase`, and for old shards
RECORD, DONE, READERS, ERASE = "stream.json", "done", "readers", "erase"


@dataclass(frozen=True)
class StreamRecord:
    """What the writer says of its stream, and which shards are complete."""

    id: str
    limit_bytes: int
    taps: list[int]
    labels: dict[str, Any] = field(default_factory=dict)  # what the answers are of; must not change
    held_out: dict[str, int] = field(default_factory=dict)  # answers of splits that the writer holds out
    shards: int = 0
    answers: int = 0
    tokens: int = 0
    below: int = 0  # answers whose prompt has a number below this one are in the counted shards
    more: list[int] = field(default_factory=list)  # numbers beyond whose answers are, too
    error: str = ""

    @staticmethod
    def read(folder: Path) -> StreamRecord | None:
        """The record of a stream; None where none begins."""
        path = folder / RECORD
        try:
            values = json.loads(path.read_text())
            values = {entry.name: values[entry.name] for entry in fields(StreamRecord)}
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = shorten(error)
            raise ArtifactError(f"{path} is no record of a stream ({reason}); type another folder") from None
        return parse_as(StreamRecord, values, str(path))

    def has(self, number: int) -> bool:
        """Whether the answer to the prompt of this number is in a counted shard."""
        return number < self.below or number in self.more

    def counting(self, numbers: Sequence[int], tokens: int) -> StreamRecord:
        """The record with one more shard, of the answers to the prompts of these numbers."""
        below, more = self.below, {*self.more, *numbers}
        while below in more:
            more.remove(below)
            below += 1
        return replace(
            self,
            shards=self.shards + 1,
            answers=self.answers + len(numbers),
            tokens=self.tokens + tokens,
            below=below,
            more=sorted(more),
        )


@dataclass(frozen=True)
class Retention:
    """How long a writer keeps its shards, for which nobody waits."""

    max_age_s: float
    erased: Callable[[], None] = lambda: None  # called in the writer's thread once it has deleted all shards on demand
    aged: Callable[[float], None] = lambda before: None  # once it has deleted the shards written before a time


def shard_name(number: int) -> str:
    """Name of a shard's files without suffix."""
    return f"shard-{number:08d}"


def shard_files(folder: Path, number: int) -> list[Path]:
    """The files of a shard that exist."""
    paths = [folder / f"{shard_name(number)}{suffix}" for suffix in (".arrow", ".safetensors")]
    return [path for path in paths if path.exists()]


def shard_numbers(folder: Path) -> list[int]:
    """Numbers of the shards of which a file exists, ascending."""
    numbers = (path.stem.removeprefix("shard-") for path in folder.glob("shard-*"))
    return sorted({int(number) for number in numbers if number.isdigit()})


def delete_shard(folder: Path, number: int) -> None:
    """Delete the files of a shard."""
    for path in shard_files(folder, number):
        path.unlink(missing_ok=True)


def used_bytes(folder: Path) -> int:
    """Size of all shards on disk."""
    total = 0
    for path in [*folder.glob("shard-*"), *folder.glob(".shard-*")]:  # finished and unfinished files
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # a reader deleted it
            continue
    return total


def open_record(
    folder: Path,
    limit_bytes: int,
    taps: Sequence[int],
    labels: dict[str, Any] | None = None,
    held_out: dict[str, int] | None = None,
    key: str = "data.stream",
) -> StreamRecord:
    """The record of a stream that a writer begins or goes on with; ArtifactError if it is of other answers.

    key: that a user types to name another folder.
    """
    fresh = StreamRecord(secrets.token_hex(8), limit_bytes, list(taps), labels or {}, held_out or {})
    record = StreamRecord.read(folder) or fresh
    for name in ("taps", "labels", "held_out"):
        if getattr(record, name) != getattr(fresh, name):
            raise ArtifactError(
                f"{folder} streams other answers: its {name} are {getattr(record, name)} instead of "
                f"{getattr(fresh, name)}; type {key}=OTHER, or delete it"
            )
    return record


def require_no_writer(folder: Path) -> None:
    """ConfigError if a process writes to the stream."""
    if is_locked(folder):
        raise ConfigError(f"another process writes to the stream {folder}; type data.stream=OTHER")


def readers_finished(folder: Path) -> bool:
    """Whether as many readers as the stream has need no more shards."""
    cursors = [json.loads(path.read_text()) for path in folder.glob(f"{READERS}/*.json")]
    return bool(cursors) and sum(cursor["finished"] for cursor in cursors) >= max(c["readers"] for c in cursors)


class StreamWriter:
    """Appends answers to a stream in a thread, which waits while the folder is full, or deletes the oldest shards.

    Answers wait in memory, two shards at most: `has_room` is False beyond, and the caller must wait.
    """

    def __init__(
        self,
        folder: Path | str,
        limit_bytes: int,
        taps: Sequence[int],
        labels: dict[str, Any] | None = None,
        held_out: dict[str, int] | None = None,
        flush_s: float = FLUSH_S,
        retention: Retention | None = None,
    ) -> None:
        """labels: what the answers are of; a stream goes on only with the same.

        retention: delete the oldest shards of a full folder; None: wait for readers.
        """
        self.folder, self.flush_s, self.retention = Path(folder).expanduser(), flush_s, retention
        with report_write_errors(self.folder):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)  # others must not read what clients ask
        self.lock, key = lock_folder(self.folder, ASKED_S), "data.stream" if retention is None else "learn.folder"
        if self.lock is None:
            raise ConfigError(f"another process writes to the stream {folder}; type {key}=OTHER")
        record = open_record(self.folder, limit_bytes, taps, labels, held_out, key)
        self.record = replace(record, limit_bytes=limit_bytes, error="")
        for path in [*shard_files(self.folder, self.record.shards), *self.folder.glob(".shard-*")]:
            path.unlink()  # left by a kill before it was counted
        save_json_atomic(self.folder / RECORD, asdict(self.record))
        self.shard_bytes = min(SHARD_BYTES, limit_bytes // PARTS)
        self.pending: list[tuple[int, ServedAnswer, int]] = []  # number, answer, bytes
        self.pending_bytes, self.pending_since, self.closing = 0, 0.0, False
        self.next_number = max([self.record.below, *(number + 1 for number in self.record.more)])
        if retention is not None:  # nobody asks for an answer by its number
            self.record = replace(self.record, below=self.next_number, more=[])
        self.is_full = False  # the thread waits for a reader
        self.next_try = 0.0  # moment at which it may be tried again to write, after an error
        self.next_look = -math.inf  # for shards that are too old
        self.changed = threading.Condition()
        self._tidy()
        self.thread = threading.Thread(target=self._work, name="drafterforge-stream", daemon=True)
        self.thread.start()

    @property
    def has_room(self) -> bool:
        """Whether another answer may be added now."""
        return self.pending_bytes < 2 * self.shard_bytes

    @property
    def is_needed(self) -> bool:
        """Whether further answers are for anybody; a writer with a retention writes for readers to come."""
        return self.retention is not None or not readers_finished(self.folder)

    def add(self, number: int, served: ServedAnswer) -> None:
        """Append an answer.  number: of its prompt in the stream; -1: the next one.

        ArtifactError if writing has failed; a writer with a retention tries again after `RETRY_S`.
        """
        tensors = [tensor for tensor in (served.features, served.states, served.outputs) if tensor is not None]
        size = sum(tensor.nbytes for tensor in tensors) + 8 * len(served.answer.input_ids)
        with self.changed:
            if self.record.error and (self.retention is None or time.monotonic() < self.next_try):
                raise ArtifactError(self.record.error)
            if not self.pending:
                self.pending_since = time.monotonic()
            number = self.next_number if number < 0 else number
            self.next_number = max(self.next_number, number + 1)
            self.pending.append((number, served, size))
            self.pending_bytes += size
            self.changed.notify_all()

    def flush(self) -> None:
        """Wait until all that was added is written; of a writer with a retention, which waits for nobody."""
        while self.pending_bytes and self.thread.is_alive():
            with self.changed:
                self.pending_since = -math.inf
                self.changed.notify_all()
            time.sleep(POLL_S / 20)

    def close(self, timeout: float | None = None) -> None:
        """Write what is pending, as far as there is room now, and end the thread."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self.thread.join(timeout)
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    # --- in the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                if (part := self._next_part()) is None:
                    return
                self._write(part)
                with self.changed:
                    self.pending_bytes -= sum(size for _, _, size in part)
            except Exception as error:  # the engine goes on; the next answer reports it
                self._fail(error)
                if self.retention is None:
                    return

    def _next_part(self) -> list[tuple[int, ServedAnswer, int]] | None:
        """The answers of the next shard, once they are due; None at the end."""
        with self.changed:
            while not self._is_due():
                if self.closing and not self.pending:
                    return None
                idle_s = None if self.retention is None else TIDY_S
                self.changed.wait(POLL_S if self.pending else idle_s)
                self._tidy()
            return self._take()

    def _fail(self, error: Exception) -> None:
        """Take no more answers.  A writer with a retention still deletes shards, and tries again later."""
        with self.changed:
            is_first, self.next_try = not self.record.error, time.monotonic() + RETRY_S
            self.record = replace(self.record, error=str(error))
            if self.retention is not None:  # the numbers of what is lost never come
                self.record = replace(self.record, below=self.next_number, more=[])
            self.pending, self.pending_bytes = [], 0
        if is_first:
            if self.retention is None:
                log.error("drafterforge streams no more answers: %s", error)
            else:
                log.error("answers are not recorded; it is tried again after %.0f s: %s", RETRY_S, error)
            with contextlib.suppress(ArtifactError):  # the disk is full, for example
                save_json_atomic(self.folder / RECORD, asdict(self.record))

    def _tidy(self) -> None:
        """Delete shards that are too old, or all of them and what is pending if `erase` is there."""
        if self.retention is None:
            return
        oldest, demand = time.time() - self.retention.max_age_s, self.folder / ERASE
        is_demanded, is_due = demand.exists(), time.monotonic() >= self.next_look
        if is_due:
            self.next_look = time.monotonic() + AGE_S
        for number in shard_numbers(self.folder) if is_demanded or is_due else ():
            files = shard_files(self.folder, number)
            if is_demanded or any(path.stat().st_mtime < oldest for path in files):
                delete_shard(self.folder, number)
        if is_due:
            self.retention.aged(oldest)
        if is_demanded:
            self.next_number = min((number for number, _, _ in self.pending), default=self.next_number)
            self.pending, self.pending_bytes = [], 0
            self.retention.erased()
            demand.unlink()

    def _is_due(self) -> bool:
        waited = time.monotonic() - self.pending_since >= self.flush_s
        return bool(self.pending) and (self.closing or waited or self.pending_bytes >= self.shard_bytes)

    def _take(self) -> list[tuple[int, ServedAnswer, int]]:
        """The pending answers of the next shard, at least one."""
        count = size = 0
        while count < len(self.pending) and (not count or size + self.pending[count][2] <= self.shard_bytes):
            size += self.pending[count][2]
            count += 1
        part, self.pending = self.pending[:count], self.pending[count:]
        return part

    def _write(self, part: Sequence[tuple[int, ServedAnswer, int]]) -> None:
        """Write a shard once there is room, and count it."""
        files = encode_served([served for _, served, _ in part])
        size, limit = sum(map(len, files.values())), self.record.limit_bytes
        if size > limit // PARTS * 2:
            key = "data.stream_gb" if self.retention is None else "learn.ring_gb"
            raise ConfigError(
                f"an answer of {size / GB:.3g} GB is too large for {key}={limit / GB:.3g}; "
                f"type {key}={2 * PARTS * size / GB:.2g} or more"
            )
        while self.is_needed and used_bytes(self.folder) + size > limit:
            if self.retention is not None:
                delete_shard(self.folder, next(iter(shard_numbers(self.folder)), 0))
                continue
            if self.closing:
                return
            self.is_full = True
            time.sleep(POLL_S)
        if not self.is_needed:
            return
        self.is_full = False
        for suffix, content in files.items():
            write_bytes_atomic(self.folder / f"{shard_name(self.record.shards)}{suffix}", content)
        numbers, tokens = [number for number, _, _ in part], sum(len(served.answer.input_ids) for _, served, _ in part)
        self.record = replace(self.record.counting(numbers, tokens), error="")
        save_json_atomic(self.folder / RECORD, asdict(self.record))


def erase_stream(folder: Path) -> None:
    """Delete all shards of a stream, and let the process that writes to it forget what it has of them."""
    demand = folder / ERASE
    if not folder.is_dir():
        return
    write_bytes_atomic(demand, b"")
    while (lock := lock_folder(folder)) is None and demand.exists():
        time.sleep(POLL_S)
    if lock is None:
        return
    for path in [*folder.glob("shard-*"), *folder.glob(".shard-*")]:
        path.unlink()
    demand.unlink(missing_ok=True)
    os.close(lock)


def finish_stream(folder: Path) -> None:
    """Say that no more answers follow."""
    write_bytes_atomic(folder / DONE, b"")
