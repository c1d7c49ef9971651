"""Memory held while something was done, beyond what was held before."""

from __future__ import annotations

import pytest
import torch

from drafterforge.evaluation import memory
from drafterforge.evaluation.memory import peak

CPU = torch.device("cpu")


def test_the_peak_is_that_of_the_work_alone():
    if not memory.RESET.exists():
        pytest.skip("this system does not tell")
    with peak(CPU) as large:
        block = torch.ones(64_000_000, dtype=torch.uint8)
        del block
    with peak(CPU) as small:
        torch.ones(1000)
    assert 60e6 < large.num_bytes < 200e6 and small.num_bytes < 30e6


def test_a_system_that_does_not_tell_gives_none(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "RESET", tmp_path / "no" / "such")
    with peak(CPU) as held:
        pass
    assert held.num_bytes is None
