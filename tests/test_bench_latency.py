"""The latency benchmark writes a profile that schedulers can be trained with elsewhere."""

from __future__ import annotations

import importlib
import json

import pytest

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.schedulers.latency import read_profile
from tests.test_bench_steps import SCRIPT

pytestmark = pytest.mark.slow  # a whole program


def test_the_profile_can_be_read_and_the_report_has_its_figures(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    bench, path, profile = importlib.import_module("bench_latency"), tmp_path / "report.json", tmp_path / "tiny.json"
    typed = f"--size tiny --vocab 64 --context 48 --quick --device cpu --profile {profile} --json {path}"
    bench.main(typed.split())
    report = json.loads(path.read_text())
    assert read_profile(profile).as_json() == read_profile_in(report, tmp_path).as_json()
    assert report["profile"]["target"] == "tiny" and report["figures"]["token_ms"] > 0
    assert report["rows"][0]["nodes"] == 1


def test_the_embedded_target_has_the_generalist_of_the_package(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    bench = importlib.import_module("bench_latency")

    def open_pool(runs_dir, target, names):
        assert (runs_dir, names) == (SHIPPED, ["general"])
        raise InterruptedError

    monkeypatch.setattr(bench, "load_target", lambda config: "target")
    monkeypatch.setattr(bench, "open_pool", open_pool)
    with pytest.raises(InterruptedError):
        bench.main(["--size", "embedded", "--device", "cpu"])


def read_profile_in(report, folder):
    """The profile in a report."""
    path = folder / "copy.json"
    path.write_text(json.dumps(report["profile"]))
    return read_profile(path)
