"""The record of drafters that were learned from a server's traffic: its learner writes it, the server follows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import ASKED_S, lock_folder, report_write_errors, save_json_atomic
from drafterforge.artifacts.folder import delete_artifact
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.staging import drop_staging
from drafterforge.config.learn import LearnConfig
from drafterforge.config.names import parse_hybrid
from drafterforge.config.progress import say
from drafterforge.errors import ArtifactError, ConfigError

FOLDER, RECORD, RUNNING = "learning", "learned.json", "running"
LEARNER = "DRAFTERFORGE_LEARNER"  # in the environment of a learner that ends with the server
JOINED, LEFT, REJECTED = "joined", "left", "rejected"
FOLDERS = "traffic-folders.json"  # in the target's folder of runs: where else traffic is recorded and learned from
TEXTS = ("answers", "features")  # artifacts that training makes of recorded answers
LOCK_S = 0.05
MOST_VERSIONS = 100  # the newest ones, which a record names even if they are not needed


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
    replaces: str = ""  # the version of its kind that left as this one joined, and that a rollback brings back
    base_gain: float = 0.0  # as `gain`, over the best drafter that was not learned from traffic
    first: str = ""  # the first drafter of `drafter=auto`
    first_gain: float = 0.0  # as `gain`, over that one


@dataclass(frozen=True)
class LearnedRecord:
    """All versions, oldest first, and how far the traffic was used."""

    versions: list[LearnedVersion] = field(default_factory=list)
    newest: dict[str, str] = field(default_factory=dict)  # kind of traffic -> id of the newest answer of a round
    frozen: bool = False  # nothing is learned until this is false again
    training: str = ""  # name of the version of the round under way, or of one that was killed
    error: str = ""  # of the last round
    num_deletions: int = 0  # of all that was recorded and learned
    num_versions: int = 0  # of all times, so that no name comes again
    fresh: dict[str, int] = field(default_factory=dict)  # kind -> prompts that were new when the learner last looked
    min_answers: int = 0  # such prompts that a kind needs for a round

    @staticmethod
    def read(traffic: Path) -> LearnedRecord:
        """The record in a folder of traffic; an empty one if nothing was learned."""
        path = traffic / FOLDER / RECORD
        return parse_as(LearnedRecord, _with_new_keys(read_json(path)), str(path)) if path.exists() else LearnedRecord()

    def of_state(self, state: str) -> list[LearnedVersion]:
        """The versions of this state."""
        return [version for version in self.versions if version.state == state]

    @property
    def drafters(self) -> dict[str, str]:
        """Kind of traffic -> the newest of its drafters that draft."""
        return {version.kind: version.name for version in self.of_state(JOINED)}

    @property
    def absent(self) -> set[str]:
        """Names of versions that do not draft, that of the round under way included."""
        return {version.name for version in self.versions if version.state != JOINED} | {self.training} - {""}

    @property
    def needed(self) -> set[str]:
        """Names of versions that draft, or would draft after a rollback."""
        return {name for version in self.of_state(JOINED) for name in (version.name, version.replaces)}

    def shortened(self) -> LearnedRecord:
        """The record without old versions that are not needed."""
        names = self.needed | {version.name for version in self.versions[-MOST_VERSIONS:]}
        return replace(self, versions=[version for version in self.versions if version.name in names])

    def with_state(self, name: str, state: str) -> LearnedRecord:
        """The record with another state of one version."""
        versions = [replace(entry, state=state) if entry.name == name else entry for entry in self.versions]
        return replace(self, versions=versions)


def _with_new_keys(values: Any) -> Any:
    """A record with the keys that those of earlier versions lack."""
    if not isinstance(values, dict) or not isinstance(versions := values.get("versions"), list):
        return values
    values = {"num_versions": len(versions), "fresh": {}, "min_answers": 0} | values
    fresh = {"replaces": "", "base_gain": 0.0, "first": "", "first_gain": 0.0}
    values["versions"] = [fresh | version if isinstance(version, dict) else version for version in versions]
    return values


def learner_lock(traffic: Path) -> Path:
    """The file that the learner of a folder of traffic keeps locked."""
    return traffic / FOLDER / RUNNING


def lock_learner(traffic: Path) -> int:
    """A file descriptor that locks a folder of traffic for this learner; ConfigError if another one holds it."""
    path = learner_lock(traffic)
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    if (lock := lock_folder(path, ASKED_S)) is None:
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


def delete_texts(traffic: Path, runs_dir: str, target: str) -> None:
    """Delete the texts that a round trained on whose learner was killed; does nothing while a learner runs."""
    name = ""
    with suppress(ArtifactError):  # a damaged record, which whoever follows it reports
        name = LearnedRecord.read(traffic).training
    if not name:
        return
    with suppress(ConfigError):
        lock = lock_learner(traffic)
        try:
            delete_learned(runs_dir, target, [name], TEXTS)
        finally:
            os.close(lock)


def delete_learned(
    runs_dir: str, target: str, names: Iterable[str], kinds: Sequence[str] = ("drafters", *TEXTS)
) -> None:
    """Delete artifacts of these kinds that were learned from traffic."""
    for kind in kinds:
        for name in names:
            path = artifact_dir(runs_dir, target, kind, name)
            delete_artifact(path)
            drop_staging(path)


def add_traffic_folder(runs_dir: str, target: str, traffic: Path) -> None:
    """Remember that experts of this folder's traffic are among the target's drafters, see `absent_drafters`."""
    folders = _traffic_folders(runs_dir, target)
    if traffic.resolve() not in [folder.resolve() for folder in folders]:
        path = Path(runs_dir) / target / FOLDERS
        with report_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        save_json_atomic(path, [str(folder) for folder in [*folders[1:], traffic.resolve()]])


def require_learned_in(runs_dir: str, target: str, traffic: Path) -> None:
    """ConfigError if experts were learned from a folder of traffic, but for another folder of runs or target."""
    record = LearnedRecord.read(traffic)
    folders = [folder.resolve() for folder in _traffic_folders(runs_dir, target)]
    if (record.versions or record.training) and traffic.resolve() not in folders:
        raise ConfigError(
            f"the experts learned from {traffic} are not in {runs_dir}; type runs_dir= as the server was started with"
        )


def absent_drafters(runs_dir: str, target: str) -> set[str]:
    """Names of drafters that were learned from traffic and do not draft: rolled back, or not compared yet."""
    absent: set[str] = set()
    for folder in _traffic_folders(runs_dir, target):
        with suppress(ArtifactError):  # a damaged record must not end commands that learn nothing
            absent |= LearnedRecord.read(folder).absent
    return absent


def learned_drafters(runs_dir: str, target: str) -> set[str]:
    """Names of drafters that were learned from traffic and draft."""
    learned: set[str] = set()
    for folder in _traffic_folders(runs_dir, target):
        with suppress(ArtifactError):
            learned |= {*LearnedRecord.read(folder).drafters.values()}
    return learned


def without_learned(names: Sequence[str], runs_dir: str, target: str) -> list[str]:
    """Names without drafters that learned from a server's traffic; prints one line if there are any."""
    learned = learned_drafters(runs_dir, target)
    if left_out := [name for name in names if learned & {*(parse_hybrid(name) or (name,))}]:
        say(
            f"left out, because they learned from the traffic of a server: {', '.join(left_out)}; `drafterforge learn "
            "export` packs them"
        )
    return [name for name in names if name not in left_out]


def _traffic_folders(runs_dir: str, target: str) -> list[Path]:
    """The default one, then the others that were remembered."""
    path, further = Path(runs_dir) / target / FOLDERS, []
    with suppress(ArtifactError):
        further = parse_as(list[str], read_json(path), str(path)) if path.exists() else []
    return [LearnConfig().traffic_dir(runs_dir, target), *map(Path, further)]
