"""A distillation of a trained drafter counts its initial weights as step 0 and keeps them unless it improves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drafterforge.training.best_checkpoint import BestCheckpoint
from tests.training.runs import SHORT, Killed, Run, assert_same_run, equal


def test_training_without_improvement_ends_with_the_initial_weights(tmp_path, accept_lengths):
    accept_lengths[:] = [2.0, 1.5, 2.0, 1.25, 9.0]
    run = Run(tmp_path, replace(SHORT, max_steps=30, val_every=2, patience=3), trained=True)
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [
        0,
        2,
        4,
        6,
    ]  # the initial accept length again is no improvement
    assert (checkpoint.best_step, checkpoint.best_score) == (0, 2.0)
    assert equal(run.weights(), run.start)
    assert checkpoint.summary(7, 12) == (
        "training did not improve on the weights it started from, which were kept: accept length 2.00 at best against "
        "2.00 at the start, on validation (12 prompts, chain of 7)"
    )
    again = run()  # it has stopped already
    assert (again.curve, again.best_step, accept_lengths) == (checkpoint.curve, 0, [9.0])
    assert equal(run.weights(), run.start)


def test_training_that_improves_keeps_the_new_weights(tmp_path, accept_lengths):
    accept_lengths[:] = [2.0, 2.5, 1.5]
    run = Run(tmp_path, replace(SHORT, max_steps=4, val_every=2), trained=True)
    checkpoint = run()
    assert (checkpoint.best_step, checkpoint.best_score) == (2, 2.5)
    assert not equal(run.weights(), run.start)
    assert checkpoint.summary(7, 12) == "accept length 2.50 on validation (12 prompts, chain of 7), 2.00 at the start"


def test_a_new_drafter_is_not_compared_with_its_initial_weights(tmp_path, accept_lengths):
    accept_lengths[:] = [1.5, 1.25]
    checkpoint = Run(tmp_path, replace(SHORT, max_steps=4, val_every=2))()
    assert [point["step"] for point in checkpoint.curve] == [2, 4] and checkpoint.best_step == 2
    assert checkpoint.summary(7, 12) == "accept length 1.50 on validation (12 prompts, chain of 7)"


@pytest.fixture(scope="module")
def full_from_trained(tmp_path_factory) -> tuple[BestCheckpoint, dict, list]:
    """Checkpoint, weights and log of an uninterrupted run from a trained drafter."""
    run = Run(tmp_path_factory.mktemp("trained"), trained=True)
    checkpoint = run()
    return checkpoint, run.weights(), run.logged()


@pytest.mark.slow
def test_a_validation_before_the_first_step_changes_no_later_step(full_from_trained, full):
    checkpoint, _, (first, *later) = full_from_trained
    assert checkpoint.curve[0].keys() < checkpoint.curve[1].keys() and checkpoint.curve[0]["step"] == 0
    assert checkpoint.curve[1:] == full[0].curve
    assert (first["step"], float(first["val/accept_length"])) == ("0", checkpoint.curve[0]["val/accept_length"])
    assert later == full[2]


def test_a_run_killed_after_its_first_checkpoint_does_not_repeat_the_validation_of_step_0(tmp_path, accept_lengths):
    accept_lengths[:] = [2.0, 1.5, 1.75, 1.25]
    run = Run(tmp_path, replace(SHORT, max_steps=6, val_every=2), trained=True)
    with pytest.raises(Killed):
        run(kill_at=6)  # a pass of step 0, two steps and one fetched ahead, a validation
    assert accept_lengths == [1.75, 1.25]
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [0, 2, 4, 6] and not accept_lengths
    assert (checkpoint.best_step, checkpoint.best_score) == (0, 2.0)
    assert equal(run.weights(), run.start)


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [1, 2, 5, 7, 10])
def test_a_killed_run_from_a_trained_drafter_yields_the_same_curve_and_weights(tmp_path, full_from_trained, kill_at):
    killed = Run(tmp_path, trained=True)
    with pytest.raises(Killed):
        killed(kill_at)
    assert_same_run(killed, killed(), full_from_trained)
    assert killed.logged() == full_from_trained[2]
