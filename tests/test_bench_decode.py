"""The decoding benchmark runs and writes the figures other tools read."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from drafterforge.errors import ArtifactError
from drafterforge.targets.smollm2 import ensure_smollm2

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench_decode.py"


@pytest.mark.slow
def test_report_has_the_keys_other_tools_read(tmp_path):
    try:
        ensure_smollm2()
    except ArtifactError as error:
        pytest.skip(f"the embedded target is not here and cannot be fetched: {error}")
    path = tmp_path / "decode.json"
    subprocess.run([sys.executable, SCRIPT, "--quick", "--json", path], check=True)
    report = json.loads(path.read_text())
    assert report["bench"] == "decode"
    figures = report["figures"]
    for name in ("ar_over_hf_generate", "best_over_hf_generate", "retrieval_over_prompt_lookup", "invariant_over_fast"):
        assert figures[name] > 0
    assert figures["mismatches_fp32"] == figures["mismatches_invariant"] == 0
    assert [row["method"] for row in report["rows"]][:2] == ["autoregressive", "retrieval"]


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


@pytest.mark.slow
def test_speed_beside_busy_processes_is_reported(tmp_path):
    try:
        ensure_smollm2()
    except ArtifactError as error:
        pytest.skip(f"the embedded target is not here and cannot be fetched: {error}")
    path = tmp_path / "busy.json"
    options = ["--busy", "--prompts", "1", "--max-new-tokens", "8", "--setting", "OMP_WAIT_POLICY=PASSIVE"]
    subprocess.run([sys.executable, SCRIPT, *options, "--json", path], check=True)
    report = json.loads(path.read_text())
    assert report["bench"] == "decode-busy" and report["figures"]["mismatches"] == 0
    assert report["figures"]["plain_busy_over_idle"] > 0 and report["figures"]["tree_busy_over_idle"] > 0
    assert [row["setting"] for row in report["rows"]] == ["drafterforge"] * 2 + ["OMP_WAIT_POLICY=PASSIVE"] * 2
