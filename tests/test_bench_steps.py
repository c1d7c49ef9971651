"""The benchmark of steps runs on a random target, and its figures belong together."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow  # a whole program

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench_steps.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_steps", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_method_has_its_steps_and_its_floor(bench, tmp_path, dtype):
    path = tmp_path / "steps.json"
    typed = f"--size tiny --vocab 64 --context 24 --cycles 4 --experts 2 --device cpu --dtype {dtype} --json".split()
    bench.main([*typed, str(path)])
    report = json.loads(path.read_text())
    assert (report["bench"], report["dtype"], report["context"]) == ("steps", dtype, 24)
    plain, *drafting, pool = report["rows"]
    assert plain["method"] == "autoregressive" and plain["over_autoregressive"] == 1 and plain["select_ms"] == 0
    assert pool["method"] == "normalhedge over 3" and pool["select_ms"] > 0
    for row in drafting:
        assert row["draft_ms"] > 0 and row["refresh_ms"] > 0 and row["floor_ms"] > plain["floor_ms"]
    for row in report["rows"]:
        assert row["verify_ms"] > 0
        assert row["over_floor"] == pytest.approx(row["total_ms"] / row["floor_ms"])


def test_the_floor_counts_what_one_pass_reads(bench):
    target = bench.random_target("tiny", torch.device("cpu"), torch.float32)
    size = bench.SIZES["tiny"]
    width, inner = size["hidden_size"], size["intermediate_size"]
    layer = width * (width + 2 * width // 2) + width * width + 3 * width * inner
    assert bench.num_weights_read(target) == size["num_hidden_layers"] * layer + size["vocab_size"] * width
