"""The decoding benchmark runs and writes the figures other tools read."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.evaluation import other_engines
from drafterforge.targets import load
from tests.models import tiny_drafter
from tests.tiny import save_tiny_target

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench_decode.py"


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The script, on a tiny target instead of the embedded one, and with a random drafter."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    folder = save_tiny_target(tmp_path / "tiny", vocab_size=512)
    module, busy = (importlib.import_module(name) for name in ("bench_decode", "bench_decode_busy"))
    for each in (module, busy):
        monkeypatch.setattr(each, "load_target", lambda config: load.load_target(tiny(folder, config.dtype)))
        monkeypatch.setattr(each, "open_for_decoding", lambda folder, target: random_drafter(target))
    return module


def tiny(folder: Path, dtype: str) -> TargetConfig:
    return TargetConfig(name="tiny", source="hf", model=str(folder), dtype=dtype)


def random_drafter(target: load.Target) -> FusedDrafter:
    return FusedDrafter(tiny_drafter(target).to(target.dtype), target.backbone.embedding)


def run(bench, monkeypatch, path: Path, *typed: str) -> dict:
    """The report that the script writes."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *typed, "--json", str(path)])
    bench.main()
    return json.loads(path.read_text())


@pytest.mark.slow
def test_report_has_the_keys_other_tools_read(bench, monkeypatch, tmp_path):
    report = run(bench, monkeypatch, tmp_path / "decode.json", "--quick", "drafter=any")
    assert report["bench"] == "decode"
    figures = report["figures"]
    for name in ("ar_over_hf_generate", "best_over_hf_generate", "retrieval_over_prompt_lookup", "invariant_over_fast"):
        assert figures[name] > 0
    assert figures["mismatches_fp32"] == figures["mismatches_invariant"] == 0
    assert figures["cycle_over_forwards"] > 0 and figures["verify16_over_one"] > 0
    methods = [row["method"].split()[0] for row in report["rows"]]
    assert methods[:5] == ["autoregressive", "chain", "tree", "eagle3+retrieval", "retrieval"]


def test_transformers_loads_the_weights_once_and_stops_at_the_end_tokens(bench, monkeypatch):
    target, models = bench.load_target(TargetConfig(dtype="float32")), []

    def open_model(target):
        models.append(other_engines.open_model(target))
        return models[-1]

    def answers(target):
        methods = bench.other_methods(argparse.Namespace(peers=True, openvino=""), target)
        return [method.decode([1, 2, 3], 8).tokens for method in methods]

    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    monkeypatch.setattr(bench, "open_model", open_model)
    plain, lookup = answers(target)
    assert len(models) == 1 and len(plain) == 8 and plain == lookup
    assert answers(replace(target, eos_ids=frozenset(plain[:1]))) == [plain[:1]] * 2


@pytest.fixture
def busy(monkeypatch):
    """The module of --busy."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("bench_decode_busy")


def test_ratios_are_taken_round_by_round(busy):
    ours = busy.Result("ours", "plain", idle=[100.0, 10.0, 50.0], busy=[50.0, 4.0, 15.0])
    rival = busy.Result("other", "plain", idle=[50.0, 10.0, 100.0], busy=[25.0, 4.0, 30.0])
    row = rival.row(ours)
    assert (row["idle_tokens_per_s"], row["busy_tokens_per_s"], row["rounds"]) == (50.0, 25.0, 3)
    assert row["busy_over_idle"] == pytest.approx(0.4)
    assert row["idle_over_first"] == row["busy_over_first"] == 1.0


def test_busy_processes_end_with_the_block(busy):
    with busy.busy_processes(2) as processes:
        assert len(processes) == 2 and all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)


def test_the_decoding_process_answers_each_line(bench, busy, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("plain 0\ntree 0\nplain 1\n"))
    busy.answer_lines(Path("any"), "float32", 8)
    about, *answers = map(json.loads, capsys.readouterr().out.splitlines())
    assert about == {"device": about["device"], "dtype": "float32"}
    assert answers[0][0] == answers[1][0] != answers[2][0]
    assert all(seconds > 0 and cpu_s > 0 for _, seconds, cpu_s in answers)


CHILD = """
import json, os, sys
print(json.dumps({"device": " ".join(sys.argv[1:]), "dtype": "float32"}), flush=True)
for line in sys.stdin:
    passive = os.environ.get("OMP_WAIT_POLICY") == "PASSIVE"
    print(json.dumps([[1, 2, 3, 4], 0.5 if passive else 1.0, 0.1]), flush=True)
"""


def test_speed_beside_busy_processes_is_reported(bench, busy, monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    monkeypatch.setattr(busy, "__file__", str(child))
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # not of our setting
    options = ["--busy", "--prompts", "1", "--max-new-tokens", "8", "--setting", "OMP_WAIT_POLICY=PASSIVE"]
    report = run(bench, monkeypatch, tmp_path / "busy.json", "drafter=any", *options)
    assert report["bench"] == "decode-busy" and report["figures"]["mismatches"] == 0
    assert report["device"] == "any auto 8"
    assert report["figures"]["plain_busy_over_idle"] == report["figures"]["tree_busy_over_idle"] == 1.0
    assert [row["setting"] for row in report["rows"]] == ["drafterforge"] * 2 + ["OMP_WAIT_POLICY=PASSIVE"] * 2
    assert [row["idle_over_first"] for row in report["rows"]] == [1.0, 1.0, 2.0, 2.0]
