"""Experts trained together equal those trained alone: weights, curves, logs, checkpoints; also after a kill."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drafterforge.config.drafter import LoraConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.train.experts import ExpertsModule
from drafterforge.drafters.eagle3.train.lora import add_adapter
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.targets.capture import FeatureCapture
from drafterforge.training import resume
from drafterforge.training.batches import PackedData
from drafterforge.training.best_checkpoint import BestCheckpoint
from drafterforge.training.experts import ExpertRun, distil_experts
from drafterforge.training.resume import SafetensorsCheckpointIO
from drafterforge.training.trainer import distil
from tests.models import tiny_drafter, tiny_target
from tests.training.runs import SHORT, Killed, Row, dying_before

CPU = torch.device("cpu")
NAMES = ["sql", "math", "sql-wide"]
STREAMS = [0, 1, 0]  # the last one is a study of the first one's domain
LORA = [LoraConfig(rank=4), LoraConfig(rank=4), LoraConfig(rank=8, alpha=8.0, targets=["q_proj", "down_proj"])]
FAST = replace(SHORT, lr=3e-2)
CONFIGS = [FAST, replace(FAST, lr=5e-2, weight_decay=0.1), replace(FAST, warmup_ratio=0.5)]


class Experts:
    """Tiny experts of one generalist, trained together or alone; the target's pass number `kill_at` raises."""

    def __init__(self, folder: Path, configs: list[TrainerConfig] = CONFIGS) -> None:
        self.folder, self.configs, self.target = folder, configs, tiny_target(eos_token_id=None)
        torch.manual_seed(5)
        self.rows = [
            [Row(torch.randint(3, 61, (n,)).tolist(), [0] * 4 + [1] * (n - 4)) for n in lengths]
            for lengths in ((9, 17, 20, 12, 11, 18), (10, 19, 13, 16, 15, 12, 20, 9))
        ]
        self.passes, self.kill_at = 0, None

    def read(self, rows: list[Row]) -> list:
        self.passes += 1
        if self.passes == self.kill_at:
            raise Killed
        return FeatureCapture(self.target)([row.input_ids for row in rows])

    def data(self, stream: int, seed: int | None) -> PackedData:
        rows = self.rows[stream][: -2 - stream] if seed is not None else self.rows[stream][-2 - stream :]
        return PackedData(rows, lambda indices: self.read([rows[i] for i in indices]), SHORT.tokens_per_batch, seed)

    def modules(self) -> list[DistillModule]:
        modules = []
        for number, (config, lora) in enumerate(zip(self.configs, LORA, strict=True)):
            torch.manual_seed(1)
            drafter = add_adapter(tiny_drafter(self.target), lora, seed=number)
            modules.append(DistillModule(drafter, self.target.head_weight, config))
        return modules

    def alone(self, numbers: tuple[int, ...] = (0, 1, 2)) -> list[BestCheckpoint]:
        self.results, modules = {}, self.modules()
        checkpoints = []
        for number in numbers:
            data = self.data(STREAMS[number], 3), self.data(STREAMS[number], None)
            folder = self.folder / NAMES[number]
            checkpoints.append(distil(modules[number], *data, self.configs[number], folder, CPU, 0, trained=True))
            self.results[NAMES[number]] = weights_of(modules[number])
        return checkpoints

    def together(self, kill_at: int | None = None) -> list[BestCheckpoint]:
        self.passes, self.kill_at, modules = 0, kill_at, self.modules()
        train, val = ([self.data(stream, seed) for stream in (0, 1)] for seed in (3, None))
        runs = [
            ExpertRun(name, self.folder / name, train[stream], val[stream])
            for name, stream in zip(NAMES, STREAMS, strict=True)
        ]
        checkpoints = distil_experts(modules, runs, self.configs[0], CPU, 0)
        self.results = {name: weights_of(module) for name, module in zip(NAMES, modules, strict=True)}
        return checkpoints

    def checkpoint(self, name: str) -> dict:
        return SafetensorsCheckpointIO().load_checkpoint(self.folder / name / "last.ckpt")

    def saved(self, name: str) -> dict[str, torch.Tensor]:
        """Weights and moments of the optimiser of an expert's last checkpoint."""
        checkpoint = self.checkpoint(name)
        (optimizer,) = checkpoint["optimizer_states"]
        moments = {
            f"{key} {number}": value for number, state in optimizer["state"].items() for key, value in state.items()
        }
        return checkpoint["state_dict"] | moments

    def logged(self, name: str) -> list[dict[str, float]]:
        with open(self.folder / name / "logs" / "csv" / "metrics.csv") as file:
            return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


def weights_of(module: DistillModule) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.drafter.state_dict().items()}


def assert_equal_runs(experts: Experts, checkpoints: list[BestCheckpoint], alone: tuple[Experts, list]) -> None:
    """Weights within 1e-5, curves and logs within 1e-4, best steps equal."""
    for name, checkpoint, expected in zip(NAMES, checkpoints, alone[1], strict=True):
        assert checkpoint.best_step == expected.best_step
        for point, other_point in zip(checkpoint.curve, expected.curve, strict=True):
            assert point == pytest.approx(other_point, abs=1e-4)
        for row, other_row in zip(experts.logged(name), alone[0].logged(name), strict=True):
            assert row == pytest.approx(other_row, abs=1e-4)
        best = experts.results[name], alone[0].results[name]
        for weights, expected_weights in (best, (experts.saved(name), alone[0].saved(name))):
            assert weights.keys() == expected_weights.keys()
            for key, value in expected_weights.items():
                torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-5, msg=f"{name}: {key}")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> tuple[Experts, list[BestCheckpoint]]:
    experts = Experts(tmp_path_factory.mktemp("alone"))
    return experts, experts.alone()


def test_experts_trained_together_are_those_trained_alone(tmp_path, alone):
    experts = Experts(tmp_path)
    assert_equal_runs(experts, experts.together(), alone)
    files = [load_file(experts.folder / name / "best.safetensors") for name in NAMES]
    expected = [load_file(alone[0].folder / name / "best.safetensors") for name in NAMES]
    assert [file.keys() for file in files] == [file.keys() for file in expected]
    changed = [any(value.abs().sum() for key, value in file.items() if "lora_B" in key) for file in files]
    assert changed == [checkpoint.best_step > 0 for checkpoint in alone[1]] and any(changed)


def test_checkpoints_lack_the_generalist_and_those_of_earlier_versions_resume(tmp_path, alone):
    constants = {"d2t", "t2d"}
    for name in NAMES:
        best, last = load_file(alone[0].folder / name / "best.safetensors"), alone[0].checkpoint(name)["state_dict"]
        assert last.keys() == {f"drafter.{key}" for key in best}
        assert {key for key in best if "lora_" not in key} == constants
    halfway = Experts(tmp_path)
    halfway.kill_at = 9
    with pytest.raises(Killed):
        halfway.alone((0,))
    checkpoint = halfway.checkpoint("sql")
    complete = dict(halfway.modules()[0].state_dict()) | checkpoint["state_dict"]
    path = halfway.folder / "sql" / "last.ckpt"
    SafetensorsCheckpointIO().save_checkpoint(checkpoint | {"state_dict": complete}, path)
    halfway.kill_at = None
    halfway.alone((0,))
    for key, value in alone[0].results["sql"].items():
        assert torch.equal(halfway.results["sql"][key], value), key


def test_a_batch_is_read_once_for_all_its_experts(tmp_path, alone):
    experts = Experts(tmp_path)
    experts.together()
    shared = experts.passes
    single = Experts(tmp_path / "single")
    single.alone((0, 1))  # one expert of each stream
    assert shared == single.passes


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [3, 12, 19, 25])
def test_a_killed_training_of_several_resumes_to_the_same_weights(tmp_path, alone, kill_at):
    experts = Experts(tmp_path)
    with pytest.raises(Killed):
        experts.together(kill_at)
    assert_equal_runs(experts, experts.together(), alone)


@pytest.mark.slow
def test_a_killed_training_of_several_is_continued_alone_and_the_reverse(tmp_path, alone):
    experts = Experts(tmp_path / "together")
    with pytest.raises(Killed):
        experts.together(19)
    assert all((experts.folder / name / "last.ckpt").exists() for name in NAMES)
    checkpoints = experts.alone()
    assert_equal_runs(experts, checkpoints, alone)
    halfway = Experts(tmp_path / "alone")
    halfway.kill_at = 9
    with pytest.raises(Killed):
        halfway.alone((0,))
    assert (halfway.folder / "sql" / "last.ckpt").exists()  # and none of the others
    assert_equal_runs(halfway, halfway.together(), alone)


@pytest.mark.slow
@pytest.mark.parametrize("renames", [1, 2, 4, 6, 7])
def test_experts_killed_between_two_checkpoints_resume_to_the_same_weights(tmp_path, alone, monkeypatch, renames):
    experts = Experts(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(resume, "atomic_file", dying_before(resume.atomic_file, renames - 1))
        experts.together()
    assert_equal_runs(experts, experts.together(), alone)


@pytest.mark.slow
def test_an_expert_without_patience_stops_and_the_others_go_on(tmp_path):
    configs = [replace(CONFIGS[0], patience=1, lr=1e-9), CONFIGS[1], replace(CONFIGS[2], patience=1, lr=1e-9)]
    alone = Experts(tmp_path / "alone", configs)
    expected = alone.alone()
    assert [checkpoint.curve[-1]["step"] for checkpoint in expected] == [3, 10, 3]
    experts = Experts(tmp_path / "together", configs)
    checkpoints = experts.together()
    assert_equal_runs(experts, checkpoints, (alone, expected))
    finished = experts.together()
    assert [checkpoint.curve for checkpoint in finished] == [checkpoint.curve for checkpoint in checkpoints]


def test_the_generalist_s_weights_exist_once(tmp_path):
    module = ExpertsModule(Experts(tmp_path).modules(), NAMES, STREAMS, STREAMS)
    first, *later = [dict(expert.drafter.named_parameters()) for expert in module.experts]
    frozen = [name for name, value in first.items() if not value.requires_grad]
    for parameters in later:
        shared = {value.data_ptr() for value in parameters.values() if not value.requires_grad}
        assert shared == {first[name].data_ptr() for name in frozen}
    assert sum(value.requires_grad for value in module.parameters()) == sum(
        value.requires_grad for expert in module.experts for value in expert.parameters()
    )
