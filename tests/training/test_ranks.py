"""Several processes train the drafter that one process trains, and end together."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from drafterforge.cli import run as command_line
from drafterforge.config.trainer import TrainerConfig
from drafterforge.errors import ConfigError
from drafterforge.pipelines import train_drafter
from drafterforge.training import launch, ranks
from drafterforge.training.launch import Placement
from drafterforge.training.resume import SafetensorsCheckpointIO, shift_batches
from tests.training.processes import INTERRUPTED, LOST, Event, train_together
from tests.training.runs import SHORT, Run

# several validation batches, so that the processes have different numbers of them
SHARED = replace(SHORT, accumulate=4, tokens_per_batch=24, max_steps=20, val_every=5, lr=3e-3)
BRIEF = replace(SHARED, max_steps=6, val_every=2)
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 1e-5, 1e-4  # the latter relative to the norm of a tensor
NO_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "SLURM_STEP_NUM_TASKS")


def state_of(folder: Path) -> dict:
    """The last checkpoint: weights and curve."""
    return SafetensorsCheckpointIO().load_checkpoint(folder / "last.ckpt")


def assert_equal_training(run: Run, expected: Run) -> None:
    """The two folders have the same losses, validations and final weights, up to the order of sums."""
    rows, expected_rows = run.logged(), expected.logged()
    assert len(rows) == len(expected_rows)
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row.keys() == expected_row.keys()
        for key in row:
            if row[key] or expected_row[key]:
                assert abs(float(row[key]) - float(expected_row[key])) <= LOSS_TOLERANCE, key
    state, expected_state = state_of(run.folder), state_of(expected.folder)
    assert state["global_step"] == expected_state["global_step"]
    assert state["state_dict"].keys() == expected_state["state_dict"].keys()
    for name, value in expected_state["state_dict"].items():
        difference = (state["state_dict"][name].double() - value.double()).norm()
        assert difference <= WEIGHT_TOLERANCE * value.double().norm(), name


@pytest.fixture(scope="session")
def alone(tmp_path_factory) -> Run:
    """The run of 20 steps by one process."""
    run = Run(tmp_path_factory.mktemp("alone"), SHARED)
    run()
    return run


@pytest.fixture(scope="session")
def brief(tmp_path_factory) -> Run:
    """The run of 6 steps by one process."""
    run = Run(tmp_path_factory.mktemp("brief"), BRIEF)
    run()
    return run


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_train_the_drafter_of_one(tmp_path, alone, strategy):
    assert train_together(tmp_path, replace(SHARED, strategy=strategy)) == [0, 0]
    assert_equal_training(Run(tmp_path, SHARED), alone)


@pytest.mark.slow
def test_four_processes_with_more_ranks_than_validation_batches_train_the_drafter_of_one(tmp_path):
    config = replace(BRIEF, tokens_per_batch=48)
    alone = Run(tmp_path / "alone", config)
    alone()
    assert train_together(tmp_path / "four", config, num_ranks=4) == [0] * 4
    assert_equal_training(Run(tmp_path / "four", config), alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "rank", "signal_number"), [("ddp", 1, signal.SIGTERM), ("fsdp", 0, signal.SIGINT)]
)
def test_a_signal_to_one_process_saves_the_same_step_of_all(tmp_path, brief, strategy, rank, signal_number):
    config = replace(BRIEF, strategy=strategy)
    event = Event(rank, forward_pass=5, signal_number=signal_number)
    assert train_together(tmp_path, config, event) == [INTERRUPTED, INTERRUPTED]
    assert 0 < state_of(tmp_path)["global_step"] < BRIEF.max_steps
    run = Run(tmp_path, BRIEF)
    run()
    assert_equal_training(run, brief)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "num_ranks"), [("ddp", 1), ("ddp", 2), ("fsdp", 4)])
def test_a_run_whose_process_is_killed_resumes_with_any_number_of_processes(tmp_path, brief, strategy, num_ranks):
    config = replace(BRIEF, strategy=strategy)
    chance = random.Random(f"{strategy}{num_ranks}")
    event = Event(chance.randrange(2), chance.randrange(2, 14), signal.SIGKILL)
    codes = train_together(tmp_path, config, event)
    assert codes[event.rank] == -signal.SIGKILL and codes[1 - event.rank] == LOST
    if num_ranks > 1:
        assert train_together(tmp_path, config, num_ranks=num_ranks) == [0] * num_ranks
    else:
        Run(tmp_path, config)()
    assert_equal_training(Run(tmp_path, config), brief)


@pytest.mark.slow
def test_a_run_of_one_process_resumes_with_two(tmp_path, brief):
    run = Run(tmp_path, BRIEF)
    with pytest.raises(KeyboardInterrupt):
        run(kill_at=14, error=KeyboardInterrupt)
    assert state_of(tmp_path)["global_step"] == 2
    assert train_together(tmp_path, replace(BRIEF, strategy="fsdp")) == [0, 0]
    assert_equal_training(run, brief)


@pytest.mark.slow
def test_an_error_of_one_process_ends_the_other(tmp_path):
    assert train_together(tmp_path, BRIEF, Event(1, forward_pass=4)) == [LOST, 1]


def test_the_batches_of_all_ranks_are_those_of_one_process(tmp_path):
    def batches(rank: int, num_ranks: int, split: str) -> list[list[int]]:
        data = Run(tmp_path).packed(split)
        data.rank, data.num_ranks = rank, num_ranks
        data.first_batch = lambda: 6
        answers = [batch.tokens[batch.loss_mask].tolist() for batch in islice(data, 12 // num_ranks)]
        return answers

    alone = batches(0, 1, "train")
    for num_ranks in (2, 3):
        shares = [batches(rank, num_ranks, "train") for rank in range(num_ranks)]
        assert [batch for step in zip(*shares, strict=True) for batch in step] == alone


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_all_ranks_validate_equally_many_batches_and_together_each_answer_once(tmp_path, num_ranks):
    def batches(rank: int, num_ranks: int) -> list[list[int]]:
        data = Run(tmp_path).packed("val")
        data.rank, data.num_ranks = rank, num_ranks
        return [batch.tokens[batch.loss_mask].tolist() for batch in data]

    shares = [batches(rank, num_ranks) for rank in range(num_ranks)]
    together = [batch for step in zip(*shares, strict=True) for batch in step]
    assert [batch for batch in together if batch] == batches(0, 1)
    assert len(together) - len(batches(0, 1)) == -len(batches(0, 1)) % num_ranks


def test_a_batch_without_answers_adds_nothing_to_the_counts_and_gradients(tmp_path):
    run = Run(tmp_path)
    batch = next(iter(run.packed("val"))).without_answers()
    module = run.new_module()
    loss, counts = module(batch)
    loss.backward()
    assert counts.map(torch.zeros_like).valid.tolist() == counts.valid.tolist()
    assert all(not parameter.grad.any() for parameter in module.parameters() if parameter.requires_grad)


def test_batches_of_a_checkpoint_are_counted_as_by_one_process():
    def checkpoint(ready: int, completed: int) -> dict:
        counts = {"ready": ready, "started": ready, "processed": ready, "completed": completed}
        progress = {"total": dict(counts), "current": dict(counts), "is_last_batch": False}
        return {"loops": {"fit_loop": {"epoch_loop.batch_progress": progress}}}

    saved = checkpoint(6, 5)  # saved before the batch counts as completed
    shift_batches(saved, lambda count: count * 2)
    assert saved == checkpoint(12, 11)
    shift_batches(saved, lambda count: count // 4)
    assert saved == checkpoint(3, 2)


# How processes are started.


@pytest.fixture
def no_ranks(monkeypatch):
    """An environment in which nothing has started several processes."""
    for name in NO_RANKS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_process_knows_its_rank_from_torchrun_and_srun(no_ranks):
    assert launch.placement() is None
    variables = {"SLURM_PROCID": 5, "SLURM_LOCALID": 1, "SLURM_STEP_NUM_TASKS": 8, "SLURM_STEP_NUM_NODES": 2}
    for name, value in variables.items():
        no_ranks.setenv(name, str(value))
    assert launch.placement() == Placement(5, 8, 1, 4)
    no_ranks.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert launch.placement() is None
    variables = {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "node1"}
    for name, value in variables.items():
        no_ranks.setenv(name, str(value))
    assert launch.placement() == Placement(3, 4, 1, 2)


def test_a_batch_script_of_slurm_without_srun_is_one_process(no_ranks):
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}.items():
        no_ranks.setenv(name, value)
    assert launch.placement() is None


@pytest.mark.parametrize(
    ("gpus", "accumulate", "device", "expected"),
    [(0, 4, "auto", 1), (4, 1, "auto", 1), (4, 2, "auto", 2), (4, 6, "cuda", 3), (4, 8, "cuda:1", 1), (3, 8, "cpu", 1)],
)
def test_a_training_takes_as_many_gpus_as_can_share_its_batches(no_ranks, gpus, accumulate, device, expected):
    no_ranks.setattr(torch.cuda, "device_count", lambda: gpus)
    assert launch.local_devices(TrainerConfig(accumulate=accumulate), device) == expected


@pytest.mark.parametrize(
    ("gpus", "accumulate", "line"),
    [
        (8, 4, "GPUs: 4 of 8 train; `trainer.accumulate=8 trainer.tokens_per_batch=1024` would use all\n"),
        (2, 1, "GPUs: 1 of 2 train; `trainer.accumulate=2 trainer.tokens_per_batch=1024` would use all\n"),
        (4, 4, ""),
        (1, 1, ""),
    ],
)
def test_idle_gpus_are_reported_with_what_would_use_them(no_ranks, capsys, gpus, accumulate, line):
    no_ranks.setattr(torch.cuda, "device_count", lambda: gpus)
    launch.local_devices(TrainerConfig(accumulate=accumulate), "auto")
    assert capsys.readouterr().err.replace("\n", " ").split() == line.split()
    launch.local_devices(TrainerConfig(devices=1, accumulate=accumulate), "auto")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("device", "message"), [("auto", "2 GPUs are here"), ("cuda:0", "is one device")])
def test_devices_that_are_not_there_are_refused(no_ranks, device, message):
    no_ranks.setattr(torch.cuda, "device_count", lambda: 2)
    config = TrainerConfig(devices=4, accumulate=4)
    with pytest.raises(ConfigError, match=message):
        launch.local_devices(config, device)
    assert launch.local_devices(config, "cpu") == 4


def test_a_target_that_is_spread_over_gpus_has_one_process(no_ranks, capsys):
    no_ranks.setattr(torch.cuda, "device_count", lambda: 2)
    launched = []
    no_ranks.setattr(command_line, "launch", lambda arguments, number: launched.append(number) or 0)
    no_ranks.setattr(train_drafter, "run", lambda config: None)
    typed = ["train-drafter", "domain=general", "target.device_map=auto", "trainer.accumulate=2"]
    assert command_line.main(typed) == 0 and launched == []
    assert command_line.main([*typed, "trainer.devices=2"]) == 2
    assert "trainer.devices=2, but target.device_map=auto spreads one target" in capsys.readouterr().err
    assert command_line.main([word for word in typed if "device_map" not in word]) == 0 and launched == [2]


def test_devices_that_cannot_share_the_batches_are_refused_with_settings_that_can():
    with pytest.raises(ConfigError, match=r"type trainer\.accumulate=4, and trainer\.tokens_per_batch=512 "):
        TrainerConfig(devices=4).require_shares(4)
    with pytest.raises(ConfigError, match=r"8 devices cannot share .* type trainer\.accumulate=8"):
        TrainerConfig(devices=4, num_nodes=2, accumulate=4).require_shares(8)


@pytest.mark.parametrize(
    ("config", "position", "message"),
    [
        (TrainerConfig(devices=2, accumulate=2), None, r"trainer\.devices=2 needs a process per device"),
        (TrainerConfig(num_nodes=2, accumulate=2), None, r"trainer\.num_nodes=2 needs a process per device"),
        (TrainerConfig(devices=4, accumulate=4), Placement(0, 2, 0, 2), r"type trainer\.devices=2"),
        (TrainerConfig(num_nodes=2, accumulate=4), Placement(0, 4, 0, 4), r"type trainer\.num_nodes=1"),
        (TrainerConfig(accumulate=3), Placement(0, 2, 0, 2), r"type trainer\.accumulate=4"),
    ],
)
def test_settings_that_differ_from_the_processes_are_refused(config, position, message):
    with pytest.raises(ConfigError, match=message):
        ranks.check_placement(config, position)
