"""The load of other programs is what is busy beyond this process."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from drafterforge.evaluation import machine_load, timing
from drafterforge.evaluation.machine_load import MachineLoad, busy_seconds, load_by_session
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.methods import Method
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.timing import TimingRun, time_methods
from drafterforge.runtime.rows import Generation

LINE = "cpu  {user} 0 0 1000 50 0 0 0 0 0\n"


def test_our_seconds_are_not_those_of_others(tmp_path, monkeypatch):
    stat, ours, clock = tmp_path / "stat", [5.0], [100.0]
    monkeypatch.setattr(machine_load, "PROC_STAT", stat)
    monkeypatch.setattr(machine_load, "process_seconds", lambda: ours[0])
    monkeypatch.setattr(machine_load.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(machine_load, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    stat.write_text(LINE.format(user=2000))
    load = MachineLoad()
    stat.write_text(LINE.format(user=3000))  # ten busy seconds
    ours[0], clock[0] = 9.0, 104.0  # four of them ours, in four seconds
    assert load.other_cores() == pytest.approx(1.5)
    ours[0] = 99.0  # the machine's clock ticks more coarsely than ours
    assert load.other_cores() == 0.0


def test_a_system_that_does_not_tell_has_no_load(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_load, "PROC_STAT", tmp_path / "absent")
    assert busy_seconds() is None and MachineLoad().other_cores() is None


@pytest.mark.skipif(busy_seconds() is None, reason="no /proc/stat")
def test_a_busy_program_is_seen():
    load = MachineLoad()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(1.0)
        assert load.other_cores() > 0.1
    finally:
        busy.kill()
        busy.wait()


class Engine:
    """Answers with one token."""

    numerics = "fast"
    target = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32)

    def generate(self, prompts, *_):
        return [Generation(prompt, [1], time_s={"total": 0.1}) for prompt in prompts]


def test_a_process_is_one_session_however_many_timings_it_makes(monkeypatch, tmp_path):
    clock = itertools.count(1000, 60)
    monkeypatch.setattr(timing, "time", SimpleNamespace(time=lambda: next(clock), perf_counter=time.perf_counter))
    runs = [TimingRun(4, 0, axis="context length", at=256, temperature=t) for t in (0.0, 0.7)]
    parts = [
        entry
        for run in runs
        for entry in time_methods(run, [Method("tree", Engine())], [Request([1], "sql")], [0], ResumeCache(tmp_path))
    ]
    assert len({part.session for part in parts}) == 1
    loads = [dataclasses.replace(part, other_cores=0.5) for part in parts]
    (session,) = load_by_session(loads, threads=2)["sessions"]
    assert session["requests"] == 2  # of two temperatures


def test_sessions_of_a_resumed_run_have_their_own_load():
    def measured(group: int, session: int, other_cores: float | None, **more: object) -> Measurement:
        return Measurement("tree", [], [], 1.0, group=group, session=session, other_cores=other_cores, **more)

    parts = [measured(0, 60, 0.1), measured(0, 60, 0.3), measured(1, 3600, 2.0), measured(2, 3600, None)]
    machine = load_by_session([*parts, measured(3, 60, 9.0, source="replay")], threads=2)
    assert machine["threads"] == 2 and machine["sessions"] == [
        {"began": "1970-01-01T00:01:00+00:00", "requests": 1, "other_cores": 0.2},
        {"began": "1970-01-01T01:00:00+00:00", "requests": 1, "other_cores": 2.0},
    ]
    assert load_by_session([measured(0, 60, None)], threads=2) == {}
