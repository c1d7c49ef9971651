"""A killed or interrupted distillation resumes to the same curve, log and weights."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from drafterforge.errors import Terminated
from drafterforge.training import resume
from tests.training.runs import SHORT, Killed, Run, assert_same_run, dying_before


@pytest.mark.slow
def test_two_runs_are_equal(tmp_path, full):
    run = Run(tmp_path)
    assert_same_run(run, run(), full)
    assert run.logged() == full[2]


@pytest.mark.slow
# 10 steps and 4 validations of one batch: a run has 14 forward passes, or 15 because batches are fetched ahead
@pytest.mark.parametrize("kill_at", [1, 8, 13, 14])
def test_a_killed_run_started_again_yields_the_same_curve_and_weights(tmp_path, full, kill_at):
    run = Run(tmp_path)
    with pytest.raises(Killed):
        run(kill_at)
    assert_same_run(run, run(), full)


@pytest.mark.slow
def test_a_run_killed_again_and_again_yields_the_same_curve_and_weights(tmp_path, full):
    run = Run(tmp_path)
    for _ in range(2):
        with pytest.raises(Killed):
            run(kill_at=6)
    assert_same_run(run, run(), full)


@pytest.mark.slow
@pytest.mark.parametrize("renames", range(4))
def test_a_run_killed_around_a_rename_yields_the_same_curve_and_weights(tmp_path, full, monkeypatch, renames):
    run = Run(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(resume, "atomic_file", dying_before(resume.atomic_file, renames))
        run()
    assert_same_run(run, run(), full)


@pytest.mark.slow
def test_a_finished_run_started_again_trains_no_further(tmp_path, full):
    run = Run(tmp_path)
    run()
    checkpoint = run()
    assert_same_run(run, checkpoint, full)


@pytest.mark.slow
def test_the_log_of_a_resumed_run_has_every_step_once(tmp_path, full):
    run = Run(tmp_path)
    with pytest.raises(Killed):
        run(kill_at=9)
    run()
    assert run.logged() == full[2]


@pytest.mark.slow
def test_a_run_resumes_after_ctrl_c(tmp_path, full):
    run = Run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(kill_at=8, error=KeyboardInterrupt)
    assert_same_run(run, run(), full)


SIGNALS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


def send(number: int) -> Callable[[], None]:
    """Sends a signal to this process during a forward pass, which then goes on."""
    return lambda: os.kill(os.getpid(), number)


# 10 steps, validations after 3, 6, 9 and 10: forward passes 6, 10 and 14, or those before them, belong to validations
@pytest.mark.parametrize(
    ("forward_pass", "number"),
    [
        (3, signal.SIGINT),
        pytest.param(6, signal.SIGTERM, marks=pytest.mark.slow),
        (8, signal.SIGTERM),
        (13, signal.SIGINT),
    ],
)
def test_a_signal_saves_the_current_step_and_the_run_resumes_to_the_same_weights(
    tmp_path, full, number, forward_pass, capsys
):
    run = Run(tmp_path)
    handlers = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(SIGNALS[number]) as raised:
        run(forward_pass, send(number))
    assert raised.type is SIGNALS[number] and [signal.getsignal(each) for each in SIGNALS] == handlers
    step = int(re.search(r"training: saved at step (\d+)", capsys.readouterr().err).group(1))
    assert step >= forward_pass - 4  # one batch is fetched ahead
    assert_same_run(run, run(), full)
    assert f"training: resumed at step {step} of 10" in capsys.readouterr().err
    assert run.logged() == full[2]


def test_a_second_signal_stops_at_once(tmp_path):
    run = Run(tmp_path)

    def twice():
        send(signal.SIGINT)()
        send(signal.SIGTERM)()

    with pytest.raises(Terminated):
        run(5, twice)


@pytest.mark.slow
def test_gradient_accumulation_resumes_on_the_same_curve(tmp_path):
    config = replace(SHORT, accumulate=2, tokens_per_batch=24, max_steps=7, val_every=2)
    run = Run(tmp_path / "full", config)
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [2, 4, 6, 7]
    expected = checkpoint, run.weights(), run.logged()
    for forward_pass, error in (
        (9, Killed),
        (3, send(signal.SIGTERM)),
        (4, send(signal.SIGTERM)),
        (8, send(signal.SIGINT)),
    ):
        killed = Run(tmp_path / f"killed{forward_pass}", config)
        with pytest.raises((Killed, KeyboardInterrupt)):
            killed(forward_pass, error)
        assert_same_run(killed, killed(), expected)
        assert killed.logged() == expected[2]
