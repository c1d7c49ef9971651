"""Killed or hindered at random moments, a command leaves no half artifact, and typed again the same one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.faults import harness
from tests.faults.commands import COMMANDS, open_bench
from tests.faults.faults import FAULTS, INTERRUPTED, Trials
from tests.faults.harness import Command
from tests.faults.serving import kill_learner, kill_server
from tests.pipelines.conftest import empty_charts

QUICK = ("prepare-data", "eagle3", "bundle", "archive")
BY_NAME = {command.name: command for command in COMMANDS}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> Iterator[None]:
    with empty_charts():
        yield


@pytest.fixture(scope="module")
def trials(tmp_path_factory) -> Trials:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        return Trials(open_bench(tmp_path_factory.mktemp("faults")), seed=0)


@pytest.mark.parametrize("name", QUICK)
def test_a_killed_command_leaves_the_same_artifact(trials, name):
    outcome = trials.run(BY_NAME[name], "kill")
    assert not outcome.wrong, outcome


def test_a_killed_server_keeps_what_it_has_recorded(trials):
    outcome = kill_server(trials.bench, trials.chance)
    assert not outcome.wrong, outcome


def test_a_killed_learner_goes_on(trials):
    outcome = kill_learner(trials.bench, trials.chance)
    assert not outcome.wrong, outcome


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_command_ends_its_process_only(trials, number):
    command, runs = BY_NAME["bundle"], trials.bench.fresh()
    ending = trials.bench.run(command, runs, after_s=0.0, number=number)
    assert ending.code in INTERRUPTED and ending.is_one_line
    assert trials.bench.run(command, runs).code == 0


def test_a_command_without_output_ends_its_process_only(tmp_path):
    def close(layer: harness.FileLayer) -> None:
        os.close(1)

    process = harness.start(Command("none", ("doctor",), ()), (), tmp_path, close)
    assert process.finish().code >= 0


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "kill"])
def test_a_hindered_command_ends_in_one_line_and_leaves_the_same_artifact(trials, fault):
    outcome = trials.run(BY_NAME["eagle3" if fault == "power" else "prepare-data"], fault)
    assert not outcome.wrong, outcome


def test_the_harness_sees_a_half_artifact_a_difference_and_a_leftover(trials):
    command, runs = BY_NAME["bundle"], trials.bench.fresh()
    assert trials.bench.run(command, runs).code == 0
    assert list(trials._differences(command, runs)) == []
    name = "tiny/bundles/house"
    (runs / name / "README.md").write_text("another card")
    (runs / "tiny/bundles/.house.tmp-1").mkdir()
    expected = ["differs: bundles/house/README.md", f"half: {name}", "left: tiny/bundles/.house.tmp-1"]
    assert list(trials._differences(command, runs)) == expected


def test_a_power_cut_loses_what_is_not_synced(tmp_path):
    (tmp_path / "old").write_bytes(b"old")

    def write(layer: harness.FileLayer) -> None:
        (tmp_path / "lost").write_bytes(b"lost")
        with open(tmp_path / "synced", "wb") as file:
            file.write(b"synced")
            file.flush()
            os.fsync(file.fileno())
        os.rename(tmp_path / "synced", tmp_path / "renamed")
        layer.cut_power()

    process = harness.start(Command("none", ("doctor",), ()), (), tmp_path, write)
    assert process.finish().code == -signal.SIGKILL
    contents = [(tmp_path / name).read_bytes() for name in ("old", "lost", "renamed")]
    assert contents == [b"old", bytes(4), b"synced"]
