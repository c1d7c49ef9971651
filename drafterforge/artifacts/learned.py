"""The record of drafters that were learned from a server's traffic: its learner writes it, the server follows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from drafterforge.artifacts.atomic import lock_folder, report_write_errors, save_json_atomic
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.errors import ArtifactError, ConfigError

FOLDER, RECORD, RUNNING = "learning", "learned.json", "running"
JOINED, LEFT, REJECTED = "joined", "left", "rejected"
LOCK_S = 0.05


@dataclass(frozen=True)
class LearnedVersion:
    """A drafter that was learned from one kind of traffic, and how it compared on newer requests."""

    name: str  # of its `drafters` artifact
    kind: str  # of traffic
    state: str  # joined: it drafts | left: it does not any more | rejected: it never did, and was deleted
    rival: str  # the best of the drafters that were there
    gain: float  # in tokens per cycle, relative to the rival; mean over requests
    low: float  # end of the 95 % interval of the gain
    high: float
    num_train: int  # answers that it was trained on
    num_judged: int  # requests that it was judged on
    created: str  # UTC, ISO 8601


@dataclass(frozen=True)
class LearnedRecord:
    """All versions, oldest first, and how far the traffic was used."""

    versions: list[LearnedVersion] = field(default_factory=list)
    newest: dict[str, str] = field(default_factory=dict)  # kind of traffic -> id of the newest answer of a round
    frozen: bool = False  # nothing is learned until this is false again
    training: str = ""  # name of the version of the round under way, or of one that was killed
    error: str = ""  # of the last round
    num_deletions: int = 0  # of all that was recorded and learned

    @staticmethod
    def read(traffic: Path) -> LearnedRecord:
        """The record in a folder of traffic; an empty one if nothing was learned."""
        path = traffic / FOLDER / RECORD
        return parse_as(LearnedRecord, read_json(path), str(path)) if path.exists() else LearnedRecord()

    def of_state(self, state: str) -> list[LearnedVersion]:
        """The versions of this state."""
        return [version for version in self.versions if version.state == state]

    @property
    def drafters(self) -> dict[str, str]:
        """Kind of traffic -> the newest of its drafters that draft."""
        return {version.kind: version.name for version in self.of_state(JOINED)}

    def with_state(self, name: str, state: str) -> LearnedRecord:
        """The record with another state of one version."""
        versions = [replace(entry, state=state) if entry.name == name else entry for entry in self.versions]
        return replace(self, versions=versions)


def lock_learner(traffic: Path) -> int:
    """A file descriptor that locks a folder of traffic for this learner; ConfigError if another one holds it."""
    path = traffic / FOLDER / RUNNING
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    if (lock := lock_folder(path)) is None:
        raise ConfigError(f"another process learns from {traffic}; end it, or the server that has started it")
    return lock


def update_record(traffic: Path, change: Callable[[LearnedRecord], LearnedRecord]) -> LearnedRecord:
    """Replace the record by what `change` makes of it; other processes wait."""
    folder = traffic / FOLDER
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    while (lock := lock_folder(folder)) is None:
        if not os.access(folder, os.R_OK):
            raise ArtifactError(f"cannot read {folder}; check its permissions")
        time.sleep(LOCK_S)
    try:
        record = change(LearnedRecord.read(traffic))
        save_json_atomic(folder / RECORD, asdict(record))
    finally:
        os.close(lock)
    return record
