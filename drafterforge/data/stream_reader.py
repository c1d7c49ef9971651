"""Reads the shards of a stream, see `drafterforge.data.stream`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.config.progress import log as say_dated
from drafterforge.data.stream import (
    DONE,
    GB,
    POLL_S,
    READERS,
    StreamRecord,
    delete_shard,
    shard_files,
    shard_numbers,
)
from drafterforge.errors import ArtifactError, ConfigError

SAY_S = 60.0  # between two lines of a reader that waits
FIRST_SAY_S = 5.0


class StreamReader:
    """Reads a stream's shards in order; a shard is deleted once all readers have released it or have finished."""

    def __init__(self, folder: Path | str, name: str, num_readers: int = 1) -> None:
        """name: of this reader, unchanged when it is started again.  num_readers: of the stream."""
        self.folder, self.num_readers = Path(folder).expanduser().absolute(), num_readers
        self.path = self.folder / READERS / f"{name}.json"
        self.sizes: dict[int, int] = {}  # bytes of the shards that were read and not released
        self._wait(lambda: StreamRecord.read(self.folder) is not None, lambda: f"{self.folder} to appear")
        cursor = json.loads(self.path.read_text()) if self.path.exists() else {"next": 0, "finished": False}
        self.released, self.finished = cursor["next"], cursor["finished"]
        if not self.finished and cursor != self._cursor():
            self._save()

    @property
    def record(self) -> StreamRecord:
        """The writer's record as it is now."""
        record = StreamRecord.read(self.folder)
        if record is None:
            raise ArtifactError(f"{self.folder} is gone; start `drafterforge prepare-data data.stream=FOLDER` again")
        return record

    @property
    def unreleased_bytes(self) -> int:
        """Size of the shards that were read and not released."""
        return sum(self.sizes.values())

    def shard(self, number: int, wait: Callable[[], None] = lambda: None) -> tuple[Path, ...] | None:
        """The files of a shard, once it is complete; None if the stream ends before it.

        wait: called while it is not there; it may raise.
        """

        def ready() -> bool:
            done = (self.folder / DONE).exists()  # before the record, which then counts everything
            record = self.record
            if record.error:
                raise ArtifactError(f"the writer of {self.folder} failed: {record.error}")
            if record.shards <= number and not done and self.unreleased_bytes > record.limit_bytes * 3 // 4:
                raise ConfigError(
                    f"{self.folder} is full of shards that one step of training reads; start its writer with "
                    f"data.stream_gb={2 * record.limit_bytes / GB:.3g}, or type a smaller trainer.accumulate"
                )
            is_ready = record.shards > number or done
            if not is_ready:
                wait()
            return is_ready

        if self.finished:
            self.finished = False
            self._save()
        self._wait(ready, lambda: f"shard {number} of {self.folder}")
        if self.record.shards <= number:
            return None
        paths = shard_files(self.folder, number)
        if not paths:
            raise ArtifactError(
                f"shard {number} of {self.folder} was deleted, but this training needs it; if other trainers read the "
                "stream, type data.stream_readers=COUNT in all of them and overwrite=true to start again"
            )
        self.sizes[number] = sum(path.stat().st_size for path in paths)
        return tuple(paths)

    def bytes_before(self, number: int) -> int:
        """Size of the shards before this one that were read and not released."""
        return sum(size for shard, size in self.sizes.items() if shard < number)

    def release(self, number: int, record: bool = True) -> None:
        """Give up all shards before this one.  record: False where another process of the same reader records it."""
        self.sizes = {shard: size for shard, size in self.sizes.items() if shard >= number}
        if number > self.released:
            self.released = number
            if record:
                self._save()

    def finish(self) -> None:
        """Give up the stream: its writer may stop."""
        self.sizes = {}
        self.released, self.finished = self.record.shards, True
        self._save()

    def _cursor(self) -> dict[str, Any]:
        return {"next": self.released, "finished": self.finished, "readers": self.num_readers}

    def _save(self) -> None:
        """Record the cursor, and delete the shards that no reader needs any more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_json_atomic(self.path, self._cursor())
        cursors = [json.loads(path.read_text()) for path in self.path.parent.glob("*.json")]
        if len(cursors) < self.num_readers:
            return
        needed = min((cursor["next"] for cursor in cursors if not cursor["finished"]), default=self.released)
        for number in shard_numbers(self.folder):
            if number < needed:
                delete_shard(self.folder, number)

    @staticmethod
    def _wait(ready: Callable[[], bool], what: Callable[[], str]) -> None:
        began, next_line = time.monotonic(), FIRST_SAY_S
        while not ready():
            waited = time.monotonic() - began
            if waited >= next_line:
                next_line += SAY_S
                say_dated(
                    f"stream: waiting for {what()} since {waited:.0f} s; "
                    "`drafterforge prepare-data data.stream=FOLDER` writes it"
                )
            time.sleep(POLL_S)
