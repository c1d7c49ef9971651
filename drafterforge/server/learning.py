"""Follows a learner: starts its process, and lets the drafters that it has learned join and leave between cycles."""

from __future__ import annotations

import logging
import math
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from drafterforge.artifacts.learned import FOLDER, JOINED, LEARNER, LearnedRecord
from drafterforge.assembly.build import advisor
from drafterforge.assembly.drafters import open_named
from drafterforge.assembly.sources import PoolSource
from drafterforge.config.hints import flags_for, plain_value
from drafterforge.config.learn import LearnConfig
from drafterforge.config.names import JOINT, domain_of, parse_hybrid
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.base import Drafter
from drafterforge.drafters.hybrid.kind import with_neural
from drafterforge.errors import ArtifactError
from drafterforge.router.traffic import TrafficRouter
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool

log = logging.getLogger(__name__)

POLL_S = 2.0
STEADY_S = 600.0  # a process that runs as long has started well
LONGEST_PAUSE_S = 60.0  # between starts of a process that ends sooner
MOST_STARTS = 5  # of such a process, or of one that ends in every round, until it counts as failed
LOG, LOG_BYTES = "learner.log", 1 << 20


class LearnerProcess:
    """The process that learns; it is started again when it ends, and ends with this one."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        """command: arguments of the learner.  folder: of the traffic."""
        self.command, self.folder = list(command), folder / FOLDER
        self.process: subprocess.Popen | None = None
        self.started, self.num_starts = -math.inf, 0  # moment of the last start; starts since it ran for `STEADY_S`
        self.num_unfinished = 0  # rounds that ended with the process, since the last version
        self.num_versions = 0

    def watch(self) -> str:
        """Start the process if it does not run, after pauses if it ends after every start; running | failed.

        It has failed if it ended soon after each of `MOST_STARTS` starts, or ended as many rounds unfinished.
        """
        record = LearnedRecord.read(self.folder.parent)
        if record.num_versions > self.num_versions:
            self.num_versions, self.num_unfinished = record.num_versions, 0
        runs, age_s = self.process is not None and self.process.poll() is None, time.monotonic() - self.started
        if age_s >= STEADY_S and runs:
            self.num_starts = 0
        elif not runs and age_s >= min(POLL_S * 2**self.num_starts, LONGEST_PAUSE_S):
            self.num_unfinished += bool(record.training)
            self._start()
        return "failed" if max(self.num_starts, self.num_unfinished) > MOST_STARTS else "running"

    def _start(self) -> None:
        self.started, self.num_starts = time.monotonic(), self.num_starts + 1
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / LOG
        if path.exists() and path.stat().st_size >= LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))  # what ended the process before stays readable
        with open(path, "a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "drafterforge", *self.command],  # -P: no modules of the current folder
                env={**os.environ, LEARNER: "1"},
                stdin=subprocess.PIPE,  # closes when this process ends, which ends the learner
                stdout=output,
                stderr=output,
                process_group=0,  # Ctrl-C does not reach it; in a session of its own, nice may mean little
            )

    def stop(self) -> None:
        """End the process at once: what it has written is complete."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class LearnedDrafters:
    """Keeps the drafters of an engine's pool as the record of the learner says."""

    def __init__(self, engine: Engine, source: PoolSource, folder: Path) -> None:
        """folder: of the traffic."""
        self.engine, self.pool, self.source, self.folder = engine, engine.drafter, source, folder
        assert isinstance(self.pool, Pool)
        sorts = advisor(source, self.pool.names)  # as the learner sorts requests into kinds, whatever the pool's router
        self.router = TrafficRouter(self.pool.router or sorts, {}, sorts)
        self.pool.router = self.router
        self.template = self.pool.drafters[self.pool.names[0]]
        retrieval = (parse_hybrid(self.pool.names[0]) or ("", ""))[1]
        self.suffix = f"{JOINT}{retrieval}" if retrieval else ""
        self.followed = LearnedRecord()  # the record that the pool was changed by last
        self.learned: set[str] = set()  # names of all versions of all records
        with suppress(ArtifactError):  # a damaged record; `poll` says so
            self.learned |= {version.name for version in LearnedRecord.read(folder).versions}
        self.broken: set[str] = set()  # versions that cannot join
        self.is_changing = False  # whether the pool will be changed before the next cycle
        self.shared: dict[Any, Any] = {}  # weights of the generalists of what has joined

    def poll(self, between_cycles: Callable[[Callable[[], None]], None]) -> LearnedRecord:
        """The record; if it has changed, opens what has joined, and lets the worker change its pool.

        One change after another: what the pool lacks is known once the change before it was made.
        """
        record = LearnedRecord.read(self.folder)
        if record == self.followed or self.is_changing:
            return record
        present = {domain_of(name) for name in self.pool.names}
        joining = {}
        for name in record.drafters.values():
            if name not in present and name not in self.broken:
                try:
                    joining[name] = self._open(name)
                except Exception as error:  # of a device without memory, for example
                    self._leave_out(name, error)
        self.followed, self.is_changing = record, True
        between_cycles(partial(self._apply, record, joining))
        return record

    def _open(self, name: str) -> Drafter:
        opened = open_named([name], self.source.drafter, self.source.target, self.shared)
        return with_neural(self.template, opened[name])

    def _leave_out(self, name: str, error: Exception) -> None:
        self.broken.add(name)
        log.warning("the learned drafter %s does not join: %s", name, error)

    def _apply(self, record: LearnedRecord, joining: dict[str, Drafter]) -> None:
        """Change the pool; called between cycles."""
        try:
            self._change(record, joining)
        finally:
            self.is_changing = False

    def _change(self, record: LearnedRecord, joining: dict[str, Drafter]) -> None:
        self.router.drafters = record.drafters
        self.pool.kinds = {name + self.suffix: kind for kind, name in record.drafters.items()}
        self.learned |= {version.name for version in record.versions}
        leaving = self.learned - set(record.drafters.values())
        for name in [name for name in self.pool.names if domain_of(name) in leaving]:
            try:
                self.engine.remove_drafter(name)
            except Exception as error:
                log.warning("the learned drafter %s does not leave: %s", name, error)
        for name, drafter in joining.items():
            try:
                self.engine.add_drafter(name + self.suffix, drafter)
                log.info("the drafter %s, learned from traffic, joins", name)
            except Exception as error:
                self._leave_out(name, error)
        if self.pool.worth is not None:
            self.pool.worth.forget_kinds(record.drafters)
            for version in record.of_state(JOINED):
                if (name := version.name + self.suffix) in self.pool.names:
                    first = self.pool.names[0]  # of a bundle it may differ from that of `runs_dir`
                    gain = version.first_gain if version.first == domain_of(first) else version.base_gain
                    self.pool.worth.arms.expect(name, first, math.log1p(gain), version.num_judged)


class Learning:
    """A thread that follows the record of the learner, and watches its process."""

    def __init__(self, drafters: LearnedDrafters, process: LearnerProcess | None, clear: Callable[[], None]) -> None:
        """process: None follows only what was learned before.  clear: deletes what a round has left that was ended."""
        self.drafters, self.process, self.clear, self.state = drafters, process, clear, "running"
        self.ending = threading.Event()
        self.thread: threading.Thread | None = None

    def start(self, between_cycles: Callable[[Callable[[], None]], None]) -> None:
        """between_cycles: calls a function between two cycles, see `Worker`."""
        self.thread = threading.Thread(
            target=self._work, args=(between_cycles,), name="drafterforge-learning", daemon=True
        )
        self.thread.start()

    def close(self) -> None:
        """End the learner at once."""
        self.ending.set()
        if self.thread is not None:
            self.thread.join()
        if self.process is not None:
            self.process.stop()
            self.clear()

    def _work(self, between_cycles: Callable[[Callable[[], None]], None]) -> None:
        logged = ""
        while not self.ending.is_set():
            try:
                state = "running" if self.process is None else self.process.watch()
                record = self.drafters.poll(between_cycles)
                lacks = self.drafters.broken & {*record.drafters.values()}
                self.state = "failed" if record.error or lacks else state
            except Exception as error:  # learning must never break serving
                self.state = "failed"
                if str(error) != logged:
                    log.error("learning from traffic failed: %s", error)
                logged = str(error)
            self.ending.wait(POLL_S)


def learn_command(learn: LearnConfig, target: TargetConfig, runs_dir: str, folder: Path) -> list[str]:
    """Arguments of the learner of this server.  folder: of the traffic."""
    values = {entry.name: getattr(learn, entry.name) for entry in fields(LearnConfig)} | {"folder": str(folder)}
    typed = [f"learn.{key}={plain_value(value)}" for key, value in values.items() if key not in ("record", "train")]
    return ["learn", "run", *shlex.split(flags_for(target, runs_dir)), *typed]
