"""Processes that `launch` starts end together, and one of them says why."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from drafterforge.training import launch
from drafterforge.training.launch import RANK_LOST

FAIL = "sys.stderr.write('a warning\\ndrafterforge: a mistake\\n'); sys.exit(2)"
LOSE = f"sys.stderr.write('drafterforge: lost'); sys.exit({RANK_LOST})"
KILL = "os.kill(os.getpid(), 9)"
SLEEP = "time.sleep(60)"


@pytest.fixture
def run(monkeypatch, capsys):
    """Launches processes that run one line of Python each; returns exit code, messages and seconds."""
    monkeypatch.setattr(launch, "GRACE_S", 0.2)

    def start(arguments, variables, log):
        code = f"import os, sys, time; {arguments[variables['RANK']]}"
        return subprocess.Popen([sys.executable, "-S", "-c", code], stderr=log or subprocess.DEVNULL)

    monkeypatch.setattr(launch, "_start", start)

    def run(*lines: str) -> tuple[int, str, float]:
        began = time.monotonic()
        code = launch.launch(lines, len(lines))
        return code, capsys.readouterr().err, time.monotonic() - began

    return run


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [
        (("", ""), 0, ""),
        (("sys.exit(2)", "sys.exit(2)"), 2, ""),  # the first process has printed its message
        (("sys.exit(130)", LOSE), 130, ""),
        ((f"sys.exit({RANK_LOST})", LOSE, FAIL), 2, "drafterforge: a mistake\n"),
        ((f"sys.exit({RANK_LOST})", LOSE), RANK_LOST, "drafterforge: lost\n"),
        ((SLEEP, FAIL), 2, "drafterforge: a mistake\n"),
        (("", FAIL), 2, "drafterforge: a mistake\n"),
        ((SLEEP, "sys.stderr.write('Traceback\\nTypeError\\n'); sys.exit(1)"), 1, "Traceback\nTypeError\n"),
        (
            (SLEEP, KILL),
            2,
            "drafterforge: SIGKILL ended process 1 of the training; type the same command to continue\n",
        ),
        ((KILL, LOSE), 2, "drafterforge: SIGKILL ended process 0 of the training; type the same command to continue\n"),
    ],
)
def test_the_process_that_fails_first_says_why(run, lines, code, message):
    status, written, seconds = run(*lines)
    assert (status, written) == (code, message)
    assert seconds < 30


def test_a_message_that_the_first_process_prints_later_is_not_repeated(run, monkeypatch):
    monkeypatch.setattr(launch, "GRACE_S", 30.0)
    interrupted = "sys.stderr.write('drafterforge: interrupted'); sys.exit(130)"
    assert run(f"time.sleep(1); {interrupted}", interrupted)[:2] == (130, "")


@pytest.mark.parametrize(("typed", "code"), [("--version", 0), ("nonsense", 2)])
def test_each_process_runs_the_command_line(typed, code):
    assert launch.launch([typed], 2) == code


def test_a_process_ends_when_its_launcher_does(tmp_path):
    code = (
        "import time, os; from drafterforge.training import launch; launch.end_with_launcher(); "
        "print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**launch.os.environ, launch.LAUNCHED: "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(30) == RANK_LOST
