"""A learner that ends is started again, at once or after pauses, and one that ends after every start is reported."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from drafterforge.artifacts.learned import FOLDER, update_record
from drafterforge.server import learning
from drafterforge.server.learning import LONGEST_PAUSE_S, MOST_STARTS, POLL_S, STEADY_S, LearnerProcess

SECONDS = 24 * 3600


class Machine:
    """A clock, and processes that end after a number of seconds."""

    def __init__(self, monkeypatch, lifetime_s: float) -> None:
        self.now, self.lifetime_s, self.starts = 0.0, lifetime_s, []
        monkeypatch.setattr(learning, "time", SimpleNamespace(monotonic=lambda: self.now))  # other threads have theirs
        monkeypatch.setattr(learning.subprocess, "Popen", self.start)

    def start(self, *args, **more) -> Machine:
        self.starts.append(self.now)
        return self

    def poll(self) -> int | None:
        return None if self.now < self.starts[-1] + self.lifetime_s else -9

    def watch(self, process: LearnerProcess, seconds: float) -> list[str]:
        """States of the process."""
        states = []
        while self.now < seconds:
            states.append(process.watch())
            self.now += POLL_S
        return states


def test_a_learner_that_is_killed_every_hour_is_started_at_once_every_time(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, lifetime_s=3600.0)
    states = machine.watch(LearnerProcess([], tmp_path), SECONDS)
    assert set(states) == {"running"} and len(machine.starts) > MOST_STARTS
    assert all(later - sooner < 3600.0 + 2 * POLL_S for sooner, later in pairwise(machine.starts))
    assert (tmp_path / FOLDER).is_dir()


def test_a_learner_that_ends_after_every_start_is_reported_and_tried_again(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, lifetime_s=1.0)
    states = machine.watch(LearnerProcess([], tmp_path), 3600.0)
    assert states[0] == "running" and states[-1] == "failed"
    pauses = [later - sooner for sooner, later in pairwise(machine.starts)]
    assert pauses == sorted(pauses) and pauses[0] <= 2 * POLL_S and pauses[-1] == LONGEST_PAUSE_S


@pytest.mark.parametrize("lifetime_s", [1.0, 300.0])
def test_a_failed_learner_that_goes_on_counts_as_running_again(tmp_path, monkeypatch, lifetime_s):
    machine = Machine(monkeypatch, lifetime_s)
    process = LearnerProcess([], tmp_path)
    assert machine.watch(process, 3600.0)[-1] == "failed"
    machine.lifetime_s = float("inf")
    assert machine.watch(process, 3600.0 + LONGEST_PAUSE_S + 2 * STEADY_S)[-1] == "running"


def test_a_learner_that_ends_in_every_round_is_reported_until_a_round_ends_first(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, lifetime_s=STEADY_S + 100.0)
    process = LearnerProcess([], tmp_path)
    update_record(tmp_path, lambda record: replace(record, training="sql-traffic-v1"))
    states = machine.watch(process, 3 * 3600.0)
    assert states[0] == "running" and states[-1] == "failed"
    update_record(tmp_path, lambda record: replace(record, training="", num_versions=1))
    assert machine.watch(process, 3 * 3600.0 + 60.0)[-1] == "running"
