"""The clock counts only training, also in a resumed run, and the depth of validation does not change training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from drafterforge.training.training_clock import TrainingClock
from tests.training.runs import SHORT, Killed, Run

SECONDS = iter(range(10**9))


def run_with_callbacks(run: Run, *callbacks, **kill):
    """Runs it with callbacks."""
    run.callbacks = callbacks
    return run(**kill)


def test_the_clock_counts_steps_and_tokens_and_no_time_between_steps():
    time, cpu = iter([10.0, 13.0, 50.0, 51.5]), iter([1.0, 3.0, 3.5, 4.0])
    clock = TrainingClock(lambda: next(time), lambda: next(cpu))
    batch = SimpleNamespace(tokens=torch.zeros(7), loss_mask=torch.tensor([True, False, True]))
    module = SimpleNamespace(device=torch.device("cpu"))
    for steps in (2, 3):
        for index in range(2):
            clock.on_train_batch_start(None, module, batch, index)
        clock.on_validation_start(SimpleNamespace(global_step=steps), module)
    assert clock.points == [
        {"step": 2, "seconds": 3.0, "cpu_seconds": 2.0, "tokens": 14, "answer_tokens": 4},
        {"step": 3, "seconds": 4.5, "cpu_seconds": 2.5, "tokens": 28, "answer_tokens": 8},
    ]


@pytest.mark.slow
def test_a_resumed_run_continues_its_counts(tmp_path):
    def clock() -> TrainingClock:
        return TrainingClock(lambda: next(SECONDS), lambda: 0.0)  # called twice between validations

    full, first, second = clock(), clock(), clock()
    run_with_callbacks(Run(tmp_path / "full"), full)
    assert [point["step"] for point in full.points] == [3, 6, 9, 10]
    assert [point["seconds"] for point in full.points] == [1, 2, 3, 4]
    run = Run(tmp_path / "killed")
    with pytest.raises(Killed):
        run_with_callbacks(run, first, kill_at=9)  # after the first validation
    assert [point["step"] for point in first.points] == [3]
    run_with_callbacks(run, second)
    assert second.points == full.points


@pytest.mark.slow
def test_val_ttt_steps_changes_the_depth_of_validation_and_not_of_training(tmp_path):
    config = replace(SHORT, ttt_steps=1)
    shallow, deep = Run(tmp_path / "plain", config)(), Run(tmp_path / "deep", replace(config, val_ttt_steps=3))()
    for before, after in zip(shallow.curve, deep.curve, strict=True):
        assert "val/accuracy_2" in after and "val/accuracy_1" not in before and "train/accuracy_1" not in after
        assert after["train/loss"] == before["train/loss"] and after["val/accuracy_0"] == before["val/accuracy_0"]
        assert after["val/accept_length"] == pytest.approx(
            1 + sum(after[f"val/joint_accuracy_{depth}"] for depth in range(3))
        )
