"""A tiny distillation that a test can kill or signal at any forward pass of the target, and comparisons of two."""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.targets.capture import FeatureCapture
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
    """Ends a run as a signal would: no code catches it."""


@dataclass
class Row:
    input_ids: list[int]
    loss_mask: list[int]


class Run:
    """A tiny distillation in a folder; the target's forward pass number `kill_at` raises an error or sends a signal."""

    def __init__(self, folder: Path, config: TrainerConfig = SHORT, num_rows: int = 9, trained: bool = False) -> None:
        self.folder, self.config, self.trained = folder, config, trained
        self.target = tiny_target(eos_token_id=None)
        torch.manual_seed(5)
        lengths = torch.randint(9, 21, (num_rows + 3,)).tolist()
        rows = [Row(torch.randint(3, 61, (n,)).tolist(), [0] * 4 + [1] * (n - 4)) for n in lengths]
        self.rows = {"train": rows[:num_rows], "val": rows[num_rows:]}
        self.passes, self.callbacks = 0, ()

    def reader(self, split: str, kill_at: int | None, error: type[BaseException] | Callable[[], None]):
        capture, rows = FeatureCapture(self.target), self.rows[split]

        def read(indices: list[int]):
            self.passes += 1
            if self.passes == kill_at:
                if not isinstance(error, type):
                    error()
                else:
                    raise error
            return capture([rows[i].input_ids for i in indices])

        return read

    def __call__(
        self, kill_at: int | None = None, error: type[BaseException] | Callable[[], None] = Killed
    ) -> BestCheckpoint:
        self.passes = 0
        self.module = self.new_module()
        self.start = self.weights()
        train, val = self.packed("train", kill_at, error), self.packed("val", kill_at, error)
        device = torch.device("cpu")
        options = {"trained": self.trained, "callbacks": self.callbacks}
        return distil(self.module, train, val, self.config, self.folder, device, seed=0, **options)

    def new_module(self) -> DistillModule:
        torch.manual_seed(1)
        return DistillModule(tiny_drafter(self.target), self.target.head_weight, self.config)

    def packed(
        self, split: str, kill_at: int | None = None, error: type[BaseException] | Callable[[], None] = Killed
    ) -> PackedData:
        seed = 3 if split == "train" else None
        return PackedData(self.rows[split], self.reader(split, kill_at, error), self.config.tokens_per_batch, seed)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.module.drafter.state_dict().items()}

    def logged(self) -> list[dict[str, str]]:
        with open(self.folder / "logs" / "csv" / "metrics.csv") as file:
            return list(csv.DictReader(file))


def assert_same_run(run: Run, checkpoint: BestCheckpoint, full: tuple[BestCheckpoint, dict, list]) -> None:
    """The run has the curve and, to the last bit, the best weights of the full run."""
    assert checkpoint.curve == full[0].curve
    assert (checkpoint.best_score, checkpoint.best_step) == (full[0].best_score, full[0].best_step)
    weights = run.weights()
    assert weights.keys() == full[1].keys()
    for name, value in full[1].items():
        assert torch.equal(weights[name], value), name


def equal(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in expected)


def dying_before(atomic_file, renames):
    """`atomic_file` that raises `Killed` instead of renaming, after so many files."""
    left = [renames]

    @contextmanager
    def dying(path):
        with atomic_file(path) as temporary:
            yield temporary
            left[0] -= 1
            if left[0] < 0:
                raise Killed

    return dying
