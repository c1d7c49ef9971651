"""Loading a target and starting a drafter on `meta`: new, from a trained one, or as an addition to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafterforge.config.drafter import Eagle3DrafterConfig, LoraConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.drafters.eagle3.init import init_feature_norms
from drafterforge.drafters.eagle3.train.job import start_drafter
from drafterforge.drafters.eagle3.train.lora import save_adapter
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.targets.load import Target, load_target
from tests.gpu_rehearsal.test_training import SHORT, Step, rehearsed
from tests.gpu_rehearsal.tools import Log
from tests.models import tiny_drafter
from tests.tiny import save_tiny_target

STARTS = {
    "warm": {"init": "warm", "fc_norm": True},
    "scratch": {"init": "scratch", "norm_output": True},
    "from a drafter, frozen head": {"init": "general", "head": "target"},
    "LoRA": {"init": "general", "tuning": "lora", "lora": LoraConfig(rank=2, alpha=4.0)},
}


def load(target_dir: Path, device: str) -> Target:
    return load_target(TargetConfig(source="hf", model=str(target_dir), device=device, dtype="float32"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """A target's and its trained drafter's."""
    target_dir, drafter_dir = save_tiny_target(tmp_path_factory.mktemp("target")), tmp_path_factory.mktemp("general")
    save_drafter(drafter_dir, tiny_drafter(load(target_dir, "cpu")))
    return target_dir, drafter_dir


@pytest.mark.parametrize("settings", STARTS.values(), ids=STARTS)
def test_a_drafter_starts_without_a_read_and_is_read_once_to_be_saved(settings, folders, tmp_path):
    target_dir, drafter_dir = folders
    config = Eagle3DrafterConfig(draft_vocab_size=40, **settings)
    parent = SimpleNamespace(folder=drafter_dir, manifest=None) if config.parent else None

    def build(device: str) -> Step:
        target = load(target_dir, device)
        counts = np.arange(target.config.vocab_size) % 7
        answers = SimpleNamespace(token_counts=lambda *args, **options: counts)
        job = SimpleNamespace(
            config=config, target=target, answers=answers, answers_domain="", parent=parent, origin=None, seed=0
        )
        folder = tmp_path / device
        folder.mkdir()

        def step(log: Log) -> None:
            drafter = start_drafter(job)
            if config.fc_norm:
                init_feature_norms(drafter, torch.randn(9, 3 * target.config.hidden_size))
            module = DistillModule(drafter, target.head_weight, SHORT).to(device)
            log.mark("weights", module.state_dict())
            assert not log.reads
            if config.is_adapter:
                save_adapter(folder / "adapter", drafter, config.lora, "general")
            else:
                save_drafter(folder, drafter)

        return step

    log = rehearsed(build, [])
    assert all("save_" in where or "embedding_rows" in where for where in log.reads)
