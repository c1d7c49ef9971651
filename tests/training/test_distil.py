"""A distillation learns, follows the accept length, and ends with its best weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.errors import ConfigError
from tests.models import tiny_drafter
from tests.training.runs import SHORT, Run


def test_a_run_shorter_than_its_validation_interval_is_validated_once(tmp_path):
    checkpoint = Run(tmp_path, replace(SHORT, max_steps=2, val_every=50))()
    assert [point["step"] for point in checkpoint.curve] == [2]


def test_the_last_step_is_validated_and_can_be_the_best(tmp_path, accept_lengths):
    accept_lengths[:] = [1.5, 1.25, 1.75]
    run = Run(tmp_path, replace(SHORT, max_steps=5, val_every=2))
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [2, 4, 5] and checkpoint.best_step == 5


@pytest.mark.slow
def test_stopping_and_the_best_weights_follow_the_accept_length(tmp_path, accept_lengths):
    config = replace(SHORT, max_steps=30, val_every=2, patience=2)
    accept_lengths[:] = [1.5, 1.75, 1.5, 1.75, 2.5]
    run = Run(tmp_path / "two", config)
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [2, 4, 6, 8]  # an equal accept length is no improvement
    assert (checkpoint.best_step, checkpoint.best_score) == (4, 1.75)
    accept_lengths[:] = [1.5, 1.75, 1.0]
    shorter = Run(tmp_path / "one", replace(config, patience=1))
    shorter()
    for name, value in shorter.weights().items():
        assert torch.equal(run.weights()[name], value), name


def test_a_run_that_stopped_early_trains_no_further_when_started_again(tmp_path, accept_lengths):
    accept_lengths[:] = [1.5, 1.25, 1.0, 9.0, 9.5]
    run = Run(tmp_path, replace(SHORT, max_steps=30, val_every=2, patience=2))
    first = run()
    again = run()
    assert again.curve == first.curve and again.best_step == first.best_step == 2
    assert accept_lengths == [9.0, 9.5]


@pytest.mark.slow
def test_overfitting_a_tiny_set_lowers_the_loss_and_raises_the_accept_length(tmp_path):
    run = Run(tmp_path, replace(SHORT, max_steps=40, val_every=20, lr=2e-2, patience=99), num_rows=2)
    run.rows["val"] = run.rows["train"]
    drafter = tiny_drafter(run.target)
    drafter.set_vocabulary(torch.arange(40))
    checkpoint = run()
    first, last = checkpoint.curve[0], checkpoint.curve[-1]
    assert last["val/loss"] < first["val/loss"]
    assert last["val/accept_length"] > 1.5
    losses = [float(row["train/loss"]) for row in run.logged() if row["train/loss"]]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
def test_accumulated_micro_batches_count_as_one_step(tmp_path):
    checkpoint = Run(tmp_path, replace(SHORT, accumulate=3, max_steps=4, val_every=2))()
    assert [point["step"] for point in checkpoint.curve] == [2, 4]


def test_mixed_bfloat16_keeps_float32_masters(tmp_path):
    run = Run(tmp_path, replace(SHORT, precision="bf16-mixed", max_steps=4, val_every=2))
    before = {name: p.clone() for name, p in tiny_drafter(run.target).named_parameters()}
    checkpoint = run()
    assert all(torch.isfinite(torch.tensor(point["val/loss"])) for point in checkpoint.curve)
    for name, parameter in run.module.drafter.named_parameters():
        assert parameter.dtype == torch.float32
        assert not torch.equal(parameter, before[name]), name
        # a bfloat16 weight would lose an update of a thousandth
        assert not torch.equal(parameter, parameter.bfloat16().float()), name


def test_the_drafter_ends_with_the_best_weights_on_disk(tmp_path):
    run = Run(tmp_path, replace(SHORT, max_steps=4, val_every=2))
    checkpoint = run()
    for name, value in load_file(checkpoint.best_path).items():
        assert torch.equal(run.weights()[name], value), name


def test_a_loss_that_is_not_finite_ends_training_in_one_line(tmp_path, monkeypatch):
    figures = {"val/loss": math.nan, "val/accept_length": 1.5}
    monkeypatch.setattr(DistillModule, "on_validation_epoch_end", lambda module: module.log_dict(figures))
    with pytest.raises(
        ConfigError, match=r"val/loss is nan after step 3, .* type a smaller trainer\.lr=.*overwrite=true$"
    ):
        Run(tmp_path)()
    assert not (tmp_path / "best.safetensors").exists() and not (tmp_path / "last.ckpt").exists()
