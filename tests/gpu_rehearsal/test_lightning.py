"""A whole distillation by lightning on `meta`: the device is read when something is logged, validated or saved."""

from __future__ import annotations

from dataclasses import replace

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy

from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.training import strategies
from drafterforge.training import trainer as trainer_module
from drafterforge.training.batches import PackedData
from drafterforge.training.training_clock import TrainingClock
from tests.gpu_rehearsal.test_training import Step, rehearsed
from tests.gpu_rehearsal.tools import META, Log
from tests.models import tiny_drafter
from tests.training.runs import SHORT, Run

CONFIG = replace(SHORT, max_steps=2, val_every=2, log_every=1)


class MetaAccelerator(CPUAccelerator):
    """Lets lightning train on `meta`."""

    def setup_device(self, device: torch.device) -> None:
        """Accept any device."""


def test_a_distillation_reads_the_device_only_to_log_validate_and_save(tmp_path, monkeypatch):
    options = strategies.device_options
    on_meta = {"strategy": SingleDeviceStrategy(META, MetaAccelerator())}
    monkeypatch.setattr(strategies, "device_options", lambda device: on_meta if device == META else options(device))
    monkeypatch.setattr(
        "drafterforge.training.progress.FIGURES_S", 1e9
    )  # so that both runs read figures at the first step

    def build(device: str) -> Step:
        run = Run(tmp_path / device, CONFIG)
        torch.manual_seed(1)
        module = DistillModule(tiny_drafter(run.target), run.target.head_weight, CONFIG)
        readers = {split: run.reader(split, None, RuntimeError) for split in ("train", "val")}
        train = PackedData(run.rows["train"], readers["train"], CONFIG.tokens_per_batch, seed=3)
        val = PackedData(run.rows["val"], readers["val"], CONFIG.tokens_per_batch)
        clock = TrainingClock()

        def step(log: Log) -> None:
            folder = tmp_path / device
            trainer_module.distil(module, train, val, CONFIG, folder, torch.device(device), 0, callbacks=[clock])
            log.mark("weights", module.state_dict())
            assert clock.answer_tokens > 0

        return step

    log = rehearsed(build, [])
    validations, lines = CONFIG.max_steps // CONFIG.val_every, CONFIG.max_steps // CONFIG.log_every
    for where in (
        "training.fit.fit: copy",  # at the end lightning moves the module and the optimiser to the host
        "training.resume._flatten: copy",  # what a resumed run needs, once a validation
        "training.best_checkpoint.BestCheckpoint.save_best: copy",  # the best weights
    ):
        assert log.reads.pop(where) > 0
    trained, validated = 3 + 2 * CONFIG.ttt_steps, 2 + 2 * CONFIG.ttt_steps  # figures
    assert log.reads == {
        "training.fit.fit: item": trained * lines + validated * validations,  # lightning's loggers
        "training.best_checkpoint.BestCheckpoint.record: item": (trained + validated) * validations,
        "training.progress.StepProgress.figures: item": 1 + 2 * validations,  # once a second, and once a validation
    }
