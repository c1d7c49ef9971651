"""The clock counts training alone, also over a resumed run; a common depth changes nothing of training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from drafterforge.training.training_clock import TrainingClock
from tests.training.test_distil import SHORT, Killed, Run

SECONDS = iter(range(10**9))


def watched(run: Run, *callbacks, **kill):
    """The run with callbacks."""
    run.callbacks = callbacks
    return run(**kill)


def test_the_clock_counts_steps_and_tokens_and_not_what_lies_between_them():
    time, cpu = iter([10.0, 13.0, 50.0, 51.5]), iter([1.0, 3.0, 3.5, 4.0])
    clock = TrainingClock(lambda: next(time), lambda: next(cpu))
    batch = SimpleNamespace(tokens=torch.zeros(7), loss_mask=torch.tensor([True, False, True]))
    module = SimpleNamespace(device=torch.device("cpu"))
    for steps in (2, 3):
        for place in range(2):
            clock.on_train_batch_start(None, module, batch, place)
        clock.on_validation_start(SimpleNamespace(global_step=steps), module)
    assert clock.points == [
        {"step": 2, "seconds": 3.0, "cpu_seconds": 2.0, "tokens": 14, "answer_tokens": 4},
        {"step": 3, "seconds": 4.5, "cpu_seconds": 2.5, "tokens": 28, "answer_tokens": 8},
    ]


@pytest.mark.slow
def test_a_resumed_run_goes_on_counting(tmp_path):
    def clock() -> TrainingClock:
        return TrainingClock(lambda: next(SECONDS), lambda: 0.0)  # it is looked at twice between validations

    full, first, second = clock(), clock(), clock()
    watched(Run(tmp_path / "full"), full)
    assert [point["step"] for point in full.points] == [3, 6, 9]
    assert [point["seconds"] for point in full.points] == [1, 2, 3]
    run = Run(tmp_path / "killed")
    with pytest.raises(Killed):
        watched(run, first, kill_at=9)  # behind the first validation
    assert [point["step"] for point in first.points] == [3]
    watched(run, second)
    assert second.points == full.points


@pytest.mark.slow
def test_validation_is_as_deep_as_told_and_training_as_deep_as_ever(tmp_path):
    one = replace(SHORT, ttt_steps=1)
    shallow, same = Run(tmp_path / "plain", one)(), Run(tmp_path / "deep", replace(one, val_ttt_steps=3))()
    for before, after in zip(shallow.curve, same.curve, strict=True):
        assert "val/accuracy_2" in after and "val/accuracy_1" not in before and "train/accuracy_1" not in after
        assert after["train/loss"] == before["train/loss"] and after["val/accuracy_0"] == before["val/accuracy_0"]
        assert after["val/accept_length"] == pytest.approx(
            1 + sum(after[f"val/joint_accuracy_{depth}"] for depth in range(3))
        )
