"""The benchmark of kernels runs on small layers, and its figures belong together."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from drafterforge.kernels import native


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "scripts")
    module = importlib.import_module("bench_kernels")
    monkeypatch.setattr(module, "SHAPES", {"qkv": (70, 48), "head": (200, 48)})
    return module


@pytest.mark.skipif(native.library() is None, reason="no compiled kernels")
def test_a_pass_is_the_sum_of_its_layers(bench, tmp_path):
    path = tmp_path / "kernels.json"
    assert bench.main(f"--rows 5,2,5 --rounds 2 --working-set 40000 --json {path}".split()) == 0
    report = json.loads(path.read_text())
    passes = [row for row in report["rows"] if row["layer"] == "all"]
    layers = [row for row in report["rows"] if row["layer"] != "all"]
    ways = len(bench.WAYS) - (not native.multiplies_bfloat16())
    assert len(layers) == 2 * 2 * ways and len(passes) == 2 * ways
    for total in passes:
        of = {row["layer"]: row for row in layers if all(row[key] == total[key] for key in ("rows", "way"))}
        assert total["ms"] == pytest.approx(30 * of["qkv"]["ms"] + of["head"]["ms"])
        work = 2 * total["rows"] * 48 * (30 * 70 + 200)
        assert total["gflops"] == pytest.approx(work / total["ms"] / 1e6)
        assert (total["speedup_over_torch"] == 1) is (total["way"] == "torch")
        fewest = next(row["ms"] for row in passes if (row["rows"], row["way"]) == (2, total["way"]))
        assert total["over_fewest_rows"] == pytest.approx(total["ms"] / fewest)
        for row in of.values():
            gflops = 2 * row["rows"] * 48 * bench.SHAPES[row["layer"]][0] / row["ms"] / 1e6
            assert row["gflops"] == pytest.approx(gflops)
    figures, speeds = report["figures"], {(row["way"], row["rows"]): row["speedup_over_torch"] for row in passes}
    for count in (2, 5):
        half = speeds["kernels, bfloat16 weights", count]
        assert figures.pop(f"bfloat16_over_torch_{count}") == half
        assert figures.pop(f"float32_over_torch_{count}") == speeds["kernels, float32 weights", count]
        if native.multiplies_bfloat16():
            ratio = speeds["kernels, bfloat16 products", count] / half
            assert figures.pop(f"products_over_float32_{count}") == pytest.approx(ratio)
    assert not figures


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--rows some", "--rows some must be whole numbers"),
        ("--rows 0", "must be at least 1"),
        ("--rounds 0", "must be at least 1"),
        ("--threads 0", "must be at least 1"),
    ],
)
def test_a_mistake_is_told(bench, typed, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(typed.split())
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_without_a_compiler_there_is_nothing_to_measure(bench, monkeypatch, capsys):
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(native, "why_not", lambda: "made up")
    assert bench.main([]) == 2 and "no compiled kernels: made up; drafterforge doctor" in capsys.readouterr().err
