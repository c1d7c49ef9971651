"""Peak memory of a block of code, beyond the memory before it."""

from __future__ import annotations

import pytest
import torch

from drafterforge.evaluation import memory
from drafterforge.evaluation.memory import measure_peak

CPU = torch.device("cpu")


def test_the_peak_leaves_out_earlier_memory():
    if not memory.RESET.exists():
        pytest.skip("this system does not tell")
    with measure_peak(CPU) as large:
        block = torch.ones(64_000_000, dtype=torch.uint8)
        del block
    with measure_peak(CPU) as small:
        torch.ones(1000)
    assert 60e6 < large.num_bytes < 200e6 and small.num_bytes < 30e6


def test_memory_that_was_freed_before_counts_again():
    if not memory.RESET.exists():
        pytest.skip("this system does not tell")
    peaks, blocks_in_use = [], []
    for _ in range(3):
        with measure_peak(CPU) as held:
            blocks = [torch.ones(100_000, dtype=torch.uint8) for _ in range(400)]
            blocks_in_use.append(blocks.pop())  # the last block keeps the memory of the others in the process
            del blocks
        peaks.append(held.num_bytes)
    assert all(30e6 < peak < 80e6 for peak in peaks), peaks


def test_a_system_without_peak_memory_gives_none(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "RESET", tmp_path / "no" / "such")
    with measure_peak(CPU) as held:
        pass
    assert held.num_bytes is None
