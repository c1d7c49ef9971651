"""The benchmark of steps runs on a random target, and its figures belong together."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import pytest
import torch

from drafterforge.artifacts.locate import SHIPPED

pytestmark = pytest.mark.slow  # a whole program

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench_steps.py"


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        yield importlib.import_module("bench_steps")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_method_has_its_steps_and_its_floor(bench, tmp_path, dtype):
    path = tmp_path / "steps.json"
    typed = f"--size tiny --vocab 64 --context 24 --cycles 4 --rounds 2 --experts 2 --device cpu --dtype {dtype}"
    bench.main([*typed.split(), "--mat", "2", "--json", str(path)])
    report = json.loads(path.read_text())
    assert (report["bench"], report["dtype"], report["context"]) == ("steps", dtype, 24)
    plain, *drafting, pool = report["rows"]
    assert plain["method"] == "autoregressive" and plain["over_autoregressive"] == 1 and plain["select_ms"] == 0
    assert pool["method"] == "normalhedge over 3" and pool["select_ms"] > 0
    for row in drafting:
        assert row["draft_ms"] > 0 and row["refresh_ms"] > 0 and row["floor_ms"] > plain["floor_ms"]
    for row in report["rows"]:
        assert row["verify_ms"] > 0 and row["mismatches"] == 0
        assert row["over_floor"] == pytest.approx(row["total_ms"] / row["floor_ms"])
    figures = report["figures"]
    assert figures["mat_asked"] == pytest.approx(2) and 1.2 < figures["mat"] < 3
    assert figures["pool_over_one"] == pytest.approx(pool["total_ms"] / drafting[-1]["total_ms"])
    assert figures["speedup"] == pytest.approx(drafting[-1]["tokens_per_s"] / plain["tokens_per_s"])
    assert 0 < figures["host_share"] < 1 and figures["peak_memory_gb"] > 0 and "graphs_over_eager" not in figures


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--size tiny --mat 99 --device cpu", "--mat must be 1 to"),
        ("--size embedded --mat 3 --device cpu", "--accept and --mat need random weights"),
    ],
)
def test_a_rate_that_cannot_be_is_refused_before_anything_is_built(bench, typed, message, capsys):
    with pytest.raises(SystemExit):
        bench.main(typed.split())
    assert message in capsys.readouterr().err


def test_the_embedded_target_has_the_drafters_of_the_package(bench, monkeypatch):
    monkeypatch.setattr(bench, "load_target", lambda config: "target")
    monkeypatch.setattr(bench, "held_out_prompts", lambda *_: [])
    monkeypatch.setattr(bench, "open_pool", lambda runs_dir, target, names: {name: runs_dir for name in names})
    options = argparse.Namespace(dtype="auto", experts=1, rounds=1)
    assert bench.embedded_models(options, torch.device("cpu"))[1] == [SHIPPED] * 2


def test_the_floor_counts_what_one_pass_reads(bench):
    target = bench.random_target("tiny", torch.device("cpu"), torch.float32)
    size = bench.SIZES["tiny"]
    width, inner = size["hidden_size"], size["intermediate_size"]
    layer = width * (width + 2 * width // 2) + width * width + 3 * width * inner
    assert bench.num_weights_read(target) == size["num_hidden_layers"] * layer + size["vocab_size"] * width
