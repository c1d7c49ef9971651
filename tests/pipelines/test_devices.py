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

from drafterforge.cli import main
from tests.pipelines.conftest import PLAIN, TRAIN
from tests.programs import Program

pytestmark = pytest.mark.slow
SHARED = (
    "trainer.accumulate=2",
    "trainer.precision=32-true",  # sums in other orders differ little
    "trainer.max_steps=8",
    "trainer.tokens_per_batch=64",
    "eval.num_prompts=1",
    "eval.max_new_tokens=2",
)
TOLERANCE = 1e-5
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
LONGEST_S = 300  # of a training


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tiny_folder) -> list[dict]:
    """The curve of the training by one process."""
    runs = tmp_path_factory.mktemp("alone") / "runs"
    hf = ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN, f"runs_dir={runs}")
    assert main([*TRAIN, *SHARED, *hf]) == 0
    return curve_of(runs / "tiny" / "drafters" / "sql")


def start(bench, *arguments: str, launcher: tuple[str, ...] = ("-m",)) -> Program:
    """Start a training in another process."""
    hf = ["target=hf", f"target.model={bench.target}", "target.name=tiny", PLAIN, f"runs_dir={bench.runs}"]
    return Program(
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


def config_of(bench, name: str) -> dict:
    return json.loads((bench.artifact("drafters", name) / "manifest.json").read_text())["config"]


def curve_of(drafter: Path) -> list[dict]:
    return json.loads((drafter / "curves.json").read_text())


def assert_same_curve(curve: list[dict], expected: list[dict]) -> None:
    assert [point.keys() for point in curve] == [point.keys() for point in expected]
    for point, expected_point in zip(curve, expected, strict=True):
        assert all(abs(point[key] - expected_point[key]) <= TOLERANCE for key in point)


def test_two_devices_make_the_artifacts_and_print_the_messages_of_one(bench):
    alone = bench(*TRAIN, *SHARED, "name=one")
    assert alone.code == 0, alone.err
    settings = config_of(bench, "one")

    def check(out: str, err: str) -> None:
        assert_same_curve(*(curve_of(bench.artifact("drafters", name)) for name in ("two", "one")))
        assert len(out.splitlines()) == len(alone.out.splitlines())
        for message in ("answers:", "drafter: accept length", "step 2/8"):
            assert err.count(message) == alone.err.count(message) > 0, message
        assert config_of(bench, "two").keys() == settings.keys()
        assert config_of(bench, "two")["trainer"] == settings["trainer"]

    with start(bench, "trainer.devices=2", "name=two") as command:
        out, err = command.communicate(timeout=LONGEST_S)
    assert command.returncode == 0, err
    check(out, err)
    with start(bench, "trainer.devices=2", "name=two", "overwrite=true", launcher=TORCHRUN) as command:
        out, err = command.communicate(timeout=LONGEST_S)
    assert command.returncode == 0, err
    check(out, err)
    with start(bench, "trainer.devices=2", "name=two") as command:
        err = command.communicate(timeout=LONGEST_S)[1]
    assert command.returncode == 0 and "was trained before with these settings" in err, err
    assert not list(bench.runs.rglob(".*.partial"))


@pytest.mark.parametrize("victim", ["rank 0", "command"])
def test_a_killed_process_ends_all_in_one_line_and_one_device_resumes(bench, expected, victim):
    with start(bench, "trainer.devices=2", "name=killed") as command:
        wait_for(command, "step 2/8")
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
    assert_same_curve(curve_of(bench.artifact("drafters", "killed")), expected)


@pytest.mark.parametrize(("moment", "number"), [("8 train", signal.SIGINT), ("step 2/8", signal.SIGTERM)])
def test_a_signal_to_the_command_ends_all_in_one_line_and_two_devices_resume(bench, expected, number, moment):
    with start(bench, "trainer.devices=2", "name=ended") as command:
        wait_for(command, moment)
        command.send_signal(number)
        rest = command.stderr.read()
    assert command.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], rest
    (line,) = lines_of(rest)
    assert line.endswith("finished work is kept; type the same command to continue")
    with start(bench, "trainer.devices=2", "name=ended") as command:
        assert command.wait(LONGEST_S) == 0
    assert_same_curve(curve_of(bench.artifact("drafters", "ended")), expected)


def test_a_mistake_that_every_process_sees_is_one_line(bench):
    with start(bench, "trainer.devices=2", "drafter.init=missing") as command:
        err = command.communicate(timeout=LONGEST_S)[1]
    assert command.returncode == 2 and len(lines_of(err)) == 1 and "missing" in lines_of(err)[0]
    assert "type trainer.accumulate=4" in bench(*TRAIN, *SHARED, "trainer.devices=4").one_line()
