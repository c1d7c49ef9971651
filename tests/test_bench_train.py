"""The training benchmark runs, writes the keys other tools read and, beside speculators, agrees with it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a whole program

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench_train.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("bench_train", SCRIPT)
    bench_train = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = bench_train  # dataclasses look their module up
    try:
        spec.loader.exec_module(bench_train)
        path = tmp_path_factory.mktemp("bench") / "train.json"
        bench_train.main(["--quick", "--json", str(path)])
    finally:
        del sys.modules[spec.name]
    return json.loads(path.read_text())


def test_report_has_the_keys_other_tools_read(report):
    assert set(report) == {"bench", "created", "device", "dtype", "figures", "rows"}
    assert report["bench"] == "train"
    assert report["figures"]["answer_tokens_per_s"] > 0
    assert report["figures"]["answer_tokens_per_s_one_ttt_step"] > 0


def test_a_ratio_is_reported_only_beside_speculators(report):
    installed = importlib.util.find_spec("speculators") is not None
    assert ("ratio_to_speculators" in report["figures"]) == installed
    assert any(row.get("method") == "speculators" for row in report["rows"]) == installed


@pytest.mark.external
def test_speculators_reports_the_same_losses_and_joint_counts(report):
    pytest.importorskip("speculators")
    assert report["figures"]["loss_max_abs_diff"] < 1e-3
    assert report["figures"]["joint_max_abs_diff"] == 0
    assert all(row["joint"] > 0 for row in report["rows"] if row["table"] == "agreement")
