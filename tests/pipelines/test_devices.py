"""`train-drafter` on two devices of a machine, which are processes of the CPU here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipelines.conftest import PLAIN, TRAIN

pytestmark = pytest.mark.slow
SHARED = ("trainer.accumulate=2", "trainer.tokens_per_batch=64", "eval.num_prompts=1")
TOLERANCE = 1e-5
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")


def start(bench, *arguments: str, launcher: tuple[str, ...] = ("-m",)) -> subprocess.Popen:
    """Start a training in another process."""
    hf = ["target=hf", f"target.model={bench.target}", "target.name=tiny", PLAIN, f"runs_dir={bench.runs}"]
    return subprocess.Popen(
        [sys.executable, *launcher, "drafterforge", *TRAIN, *hf, *SHARED, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where a shell runs us as a job
    )


def lines_of(text: str) -> list[str]:
    """The lines that look like errors."""
    assert "Traceback" not in text, text
    return [line for line in text.splitlines() if line.startswith("drafterforge: ")]


def processes_of(command: subprocess.Popen) -> list[int]:
    """The processes that a command has started, in the order of their ranks."""
    return [int(pid) for pid in Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()]


def wait_for(command: subprocess.Popen, text: str) -> None:
    """Read the messages until one contains the text."""
    for line in command.stderr:
        if text in line:
            return
    raise AssertionError(f"the command ended without {text!r}")


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def assert_same_curve(bench, name: str, reference: str) -> None:
    curve, expected = (
        json.loads((bench.artifact("drafters", each) / "curves.json").read_text()) for each in (name, reference)
    )
    assert [point.keys() for point in curve] == [point.keys() for point in expected]
    for point, expected_point in zip(curve, expected, strict=True):
        assert all(abs(point[key] - expected_point[key]) <= TOLERANCE for key in point)


def test_two_devices_make_the_artifacts_and_print_the_messages_of_one(bench):
    outputs = {}
    for name, devices, launcher in (("one", 1, ("-m",)), ("two", 2, ("-m",)), ("torchrun", 2, TORCHRUN)):
        with start(bench, f"trainer.devices={devices}", f"name={name}", launcher=launcher) as command:
            out, err = command.communicate()
        assert command.returncode == 0, err
        outputs[name] = out, [line for line in err.splitlines() if line.startswith(("answers:", "drafter:"))]
        assert sum("step 2/4" in line for line in err.splitlines()) == 1
    for name in ("two", "torchrun"):
        assert_same_curve(bench, name, "one")
        assert len(outputs[name][1]) == len(outputs["one"][1])
        assert len(outputs[name][0].splitlines()) == len(outputs["one"][0].splitlines())
    manifests = [json.loads((bench.artifact("drafters", name) / "manifest.json").read_text()) for name in outputs]
    assert manifests[0]["config"].keys() == manifests[1]["config"].keys()
    assert [manifest["config"]["trainer"] for manifest in manifests[1:]] == [manifests[0]["config"]["trainer"]] * 2
    assert not list(bench.runs.rglob(".*.partial"))


def test_a_trained_drafter_is_not_trained_again_on_two_devices_unless_it_is_overwritten(bench):
    for arguments, message in (
        ((), "drafter: accept length"),
        ((), "was trained before with these settings"),
        (("overwrite=true",), "drafter: accept length"),
    ):
        with start(bench, "trainer.devices=2", *arguments) as command:
            err = command.communicate()[1]
        assert command.returncode == 0 and message in err, err


@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "command"])
def test_a_killed_process_ends_all_in_one_line_and_one_device_resumes(bench, victim):
    with start(bench, "trainer.devices=2", "name=killed") as command:
        wait_for(command, "step 2/4")
        pids = processes_of(command)
        os.kill(command.pid if victim == "command" else pids[int(victim[-1])], signal.SIGKILL)
        rest = command.stderr.read()
    if victim == "command":
        assert command.returncode == -signal.SIGKILL
    else:
        assert command.returncode == 2
        assert lines_of(rest) == [
            f"drafterforge: SIGKILL ended process {victim[-1]} of the training; type the same command to continue"
        ]
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
    assert bench.finished() == ["tiny/answers/killed", "tiny/features/killed"]
    assert bench(*TRAIN, *SHARED, "name=killed").code == 0
    assert bench(*TRAIN, *SHARED, "name=one").code == 0
    assert_same_curve(bench, "killed", "one")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["8 train", "step 2/4"])
def test_a_signal_to_the_command_ends_all_in_one_line_and_two_devices_resume(bench, number, moment):
    with start(bench, "trainer.devices=2", "name=ended") as command:
        wait_for(command, moment)
        command.send_signal(number)
        rest = command.stderr.read()
    assert command.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], rest
    (line,) = lines_of(rest)
    assert line.endswith("finished work is kept; type the same command to continue")
    with start(bench, "trainer.devices=2", "name=ended") as command:
        assert command.wait() == 0
    assert bench(*TRAIN, *SHARED, "name=one").code == 0
    assert_same_curve(bench, "ended", "one")


def test_a_mistake_that_every_process_sees_is_one_line(bench):
    with start(bench, "trainer.devices=2", "drafter.init=missing") as command:
        err = command.communicate()[1]
    assert command.returncode == 2 and len(lines_of(err)) == 1 and "missing" in lines_of(err)[0]
    with start(bench, "trainer.devices=4", launcher=TORCHRUN) as command:
        err = command.communicate()[1]
    assert "type trainer.accumulate=4" in err
