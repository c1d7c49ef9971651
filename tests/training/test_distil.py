"""A distillation learns, keeps its best weights, stops when it no longer improves, and resumes on the same curve."""

from __future__ import annotations

import csv
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.errors import Terminated
from drafterforge.targets.capture import FeatureCapture
from drafterforge.training import best_checkpoint, resume
from drafterforge.training.batches import PackedData
from drafterforge.training.best_checkpoint import BestCheckpoint
from drafterforge.training.trainer import distil
from tests.models import tiny_drafter, tiny_target

SHORT = TrainerConfig(
    ttt_steps=2,
    max_steps=10,
    tokens_per_batch=48,
    val_every=3,
    log_every=1,
    lr=3e-3,
    precision="32-true",
    loggers=["csv"],
)


class Killed(BaseException):
    """Like a signal: nobody catches it."""


@dataclass
class Row:
    input_ids: list[int]
    loss_mask: list[int]


class Run:
    """One tiny distillation in a folder; `kill_at`: which look at the target is the last."""

    def __init__(self, folder: Path, config: TrainerConfig = SHORT, num_rows: int = 9, trained: bool = False) -> None:
        self.folder, self.config, self.trained = folder, config, trained
        self.target = tiny_target(eos_token_id=None)
        torch.manual_seed(5)
        lengths = torch.randint(9, 21, (num_rows + 3,)).tolist()
        rows = [Row(torch.randint(3, 61, (n,)).tolist(), [0] * 4 + [1] * (n - 4)) for n in lengths]
        self.rows = {"train": rows[:num_rows], "val": rows[num_rows:]}
        self.looks, self.callbacks = 0, ()

    def reader(self, split: str, kill_at: int | None, error: type[BaseException] | Callable[[], None]):
        capture, rows = FeatureCapture(self.target), self.rows[split]

        def read(indices: list[int]):
            self.looks += 1
            if self.looks == kill_at:
                if not isinstance(error, type):
                    error()
                else:
                    raise error
            return capture([rows[i].input_ids for i in indices])

        return read

    def __call__(
        self, kill_at: int | None = None, error: type[BaseException] | Callable[[], None] = Killed
    ) -> BestCheckpoint:
        self.looks = 0
        torch.manual_seed(1)
        drafter = tiny_drafter(self.target)
        self.module = DistillModule(drafter, self.target.head_weight, self.config)
        self.start = self.weights()
        budget = self.config.tokens_per_batch
        train = PackedData(self.rows["train"], self.reader("train", kill_at, error), budget, seed=3)
        val = PackedData(self.rows["val"], self.reader("val", kill_at, error), budget)
        device = torch.device("cpu")
        options = {"trained": self.trained, "callbacks": self.callbacks}
        return distil(self.module, train, val, self.config, self.folder, device, seed=0, **options)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.module.drafter.state_dict().items()}

    def logged(self) -> list[dict[str, str]]:
        with open(self.folder / "logs" / "csv" / "metrics.csv") as file:
            return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def ctrl_c_still_works():
    """Lightning ignores SIGINT once it has seen one."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> tuple[BestCheckpoint, dict, list]:
    """An uninterrupted run."""
    run = Run(tmp_path_factory.mktemp("full"))
    checkpoint = run()
    return checkpoint, run.weights(), run.logged()


def same(run: Run, checkpoint: BestCheckpoint, full: tuple[BestCheckpoint, dict, list]) -> None:
    """Equal curves and equal best weights, to the last bit."""
    assert checkpoint.curve == full[0].curve
    assert (checkpoint.best_score, checkpoint.best_step) == (full[0].best_score, full[0].best_step)
    found = run.weights()
    assert found.keys() == full[1].keys()
    for name, value in full[1].items():
        assert torch.equal(found[name], value), name


@pytest.mark.slow
def test_two_runs_are_equal(tmp_path, full):
    run = Run(tmp_path)
    same(run, run(), full)
    assert run.logged() == full[2]


@pytest.mark.slow
# 10 steps and 3 validations of one batch: a run looks 13 times or once more, since batches are fetched ahead
@pytest.mark.parametrize("kill_at", [1, 5, 8, 9, 13])
def test_a_killed_run_started_again_yields_the_same_curve_and_weights(tmp_path, full, kill_at):
    run = Run(tmp_path)
    with pytest.raises(Killed):
        run(kill_at)
    same(run, run(), full)


@pytest.mark.slow
def test_a_run_killed_again_and_again_yields_the_same_curve_and_weights(tmp_path, full):
    run = Run(tmp_path)
    for _ in range(2):
        with pytest.raises(Killed):
            run(kill_at=6)
    same(run, run(), full)


@pytest.mark.slow
@pytest.mark.parametrize("renames", range(4))
def test_a_run_killed_around_a_rename_yields_the_same_curve_and_weights(tmp_path, full, monkeypatch, renames):
    left = [renames]

    def dying(real):
        def rename(*paths):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            real(*paths)

        return rename

    run = Run(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        fake = type("os", (), {"replace": staticmethod(dying(best_checkpoint.os.replace))})
        for module in (best_checkpoint, resume):
            patch.setattr(module, "os", fake)
        run()
    same(run, run(), full)


@pytest.mark.slow
def test_a_finished_run_started_again_trains_no_further(tmp_path, full):
    run = Run(tmp_path)
    run()
    checkpoint = run()
    same(run, checkpoint, full)


@pytest.mark.slow
def test_the_log_of_a_resumed_run_has_every_step_once(tmp_path, full):
    run = Run(tmp_path)
    with pytest.raises(Killed):
        run(kill_at=9)
    run()
    assert run.logged() == full[2]


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path, full):
    run = Run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(kill_at=8, error=KeyboardInterrupt)
    same(run, run(), full)


SIGNALS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


def send(number: int) -> Callable[[], None]:
    """A look at the target that is met by a signal and goes on."""
    return lambda: os.kill(os.getpid(), number)


# 10 steps, validations after 3, 6 and 9; looks 6, 10 and 14 or the one before are a validation's
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("look", [3, pytest.param(6, marks=pytest.mark.slow), 8, 13])
def test_a_signal_saves_the_step_under_way_and_the_run_resumes_to_the_same_weights(
    tmp_path, full, number, look, capsys
):
    run = Run(tmp_path)
    handlers = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(SIGNALS[number]) as raised:
        run(look, send(number))
    assert raised.type is SIGNALS[number] and [signal.getsignal(each) for each in SIGNALS] == handlers
    step = int(re.search(r"training: saved at step (\d+)", capsys.readouterr().err).group(1))
    assert step >= look - 4  # one batch is fetched ahead
    same(run, run(), full)
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
    config = replace(SHORT, accumulate=2, tokens_per_batch=24, max_steps=6, val_every=2)
    run = Run(tmp_path / "full", config)
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [2, 4, 6]
    expected = checkpoint, run.weights(), run.logged()
    for look, error in ((9, Killed), (3, send(signal.SIGTERM)), (4, send(signal.SIGTERM)), (8, send(signal.SIGINT))):
        killed = Run(tmp_path / f"killed{look}", config)
        with pytest.raises((Killed, KeyboardInterrupt)):
            killed(look, error)
        same(killed, killed(), expected)
        assert killed.logged() == expected[2]


def test_a_run_shorter_than_its_validation_interval_is_validated_once(tmp_path):
    checkpoint = Run(tmp_path, replace(SHORT, max_steps=2, val_every=50))()
    assert [point["step"] for point in checkpoint.curve] == [2]


@pytest.fixture
def accept_lengths(monkeypatch):
    """Makes validations find the accept lengths that are put into it."""
    scripted: list[float] = []

    def end(module):
        module.log("val/accept_length", scripted.pop(0))

    monkeypatch.setattr(DistillModule, "on_validation_epoch_end", end)
    return scripted


@pytest.mark.slow
def test_stopping_and_the_best_weights_follow_the_accept_length(tmp_path, accept_lengths):
    config = replace(SHORT, max_steps=30, val_every=2, patience=2)
    accept_lengths[:] = [1.5, 1.75, 1.5, 1.75, 2.5]
    run = Run(tmp_path / "two", config)
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [2, 4, 6, 8]  # 1.75 again is no better
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
def test_overfitting_a_tiny_set_lowers_the_loss_and_lengthens_what_is_accepted(tmp_path):
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
        # an update of a thousandth would be lost in a bfloat16 weight
        assert not torch.equal(parameter, parameter.bfloat16().float()), name


# From a trained drafter: its weights are step 0.


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_training_that_betters_nothing_ends_with_the_weights_it_started_from(tmp_path, accept_lengths):
    accept_lengths[:] = [2.0, 1.5, 2.0, 1.25, 9.0]
    run = Run(tmp_path, replace(SHORT, max_steps=30, val_every=2, patience=3), trained=True)
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [0, 2, 4, 6]  # the start again is no better
    assert (checkpoint.best_step, checkpoint.best_score) == (0, 2.0)
    assert equal(run.weights(), run.start)
    assert checkpoint.summary(7, 12) == (
        "training did not improve on the weights it started from, which were kept: accept length 2.00 at best against "
        "2.00 at the start, on validation (12 prompts, chain of 7)"
    )
    again = run()  # had stopped already
    assert (again.curve, again.best_step, accept_lengths) == (checkpoint.curve, 0, [9.0])
    assert equal(run.weights(), run.start)


def test_training_that_betters_the_start_is_kept(tmp_path, accept_lengths):
    accept_lengths[:] = [2.0, 2.5, 1.5]
    run = Run(tmp_path, replace(SHORT, max_steps=4, val_every=2), trained=True)
    checkpoint = run()
    assert (checkpoint.best_step, checkpoint.best_score) == (2, 2.5)
    assert not equal(run.weights(), run.start)
    assert checkpoint.summary(7, 12) == "accept length 2.50 on validation (12 prompts, chain of 7), 2.00 at the start"


def test_a_new_drafter_is_not_compared_with_its_start(tmp_path, accept_lengths):
    accept_lengths[:] = [1.5, 1.25]
    checkpoint = Run(tmp_path, replace(SHORT, max_steps=4, val_every=2))()
    assert [point["step"] for point in checkpoint.curve] == [2, 4] and checkpoint.best_step == 2
    assert checkpoint.summary(7, 12) == "accept length 1.50 on validation (12 prompts, chain of 7)"


@pytest.mark.slow
def test_validating_before_the_first_step_changes_no_later_one(tmp_path, full):
    run = Run(tmp_path, trained=True)
    checkpoint = run()
    assert checkpoint.curve[0].keys() < checkpoint.curve[1].keys() and checkpoint.curve[0]["step"] == 0
    assert checkpoint.curve[1:] == full[0].curve
    first, *later = run.logged()
    assert (first["step"], float(first["val/accept_length"])) == ("0", checkpoint.curve[0]["val/accept_length"])
    assert later == full[2]


def test_a_run_killed_after_its_first_checkpoint_does_not_validate_the_start_again(tmp_path, accept_lengths):
    accept_lengths[:] = [2.0, 1.5, 1.75, 1.25]
    run = Run(tmp_path, replace(SHORT, max_steps=6, val_every=2), trained=True)
    with pytest.raises(Killed):
        run(kill_at=6)  # one look at the start, two steps and one fetched ahead, a validation
    assert accept_lengths == [1.75, 1.25]
    checkpoint = run()
    assert [point["step"] for point in checkpoint.curve] == [0, 2, 4, 6] and not accept_lengths
    assert (checkpoint.best_step, checkpoint.best_score) == (0, 2.0)
    assert equal(run.weights(), run.start)


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [1, 2, 5, 7, 10])
def test_a_killed_run_from_a_trained_drafter_yields_the_same_curve_and_weights(tmp_path, kill_at):
    run = Run(tmp_path / "full", trained=True)
    checkpoint = run()
    expected = checkpoint, run.weights(), run.logged()
    killed = Run(tmp_path / "killed", trained=True)
    with pytest.raises(Killed):
        killed(kill_at)
    same(killed, killed(), expected)
    assert killed.logged() == expected[2]


def test_the_best_weights_on_disk_are_those_the_drafter_ends_with(tmp_path):
    run = Run(tmp_path, replace(SHORT, max_steps=4, val_every=2))
    checkpoint = run()
    for name, value in load_file(checkpoint.best_path).items():
        assert torch.equal(run.weights()[name], value), name
