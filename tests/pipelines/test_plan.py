"""`plan` needs a config.json and nothing else."""

from __future__ import annotations

import json

import pytest

from drafterforge.cli import main
from tests.evaluation.test_planning import TOY


@pytest.fixture
def folder(tmp_path):
    """A target without weights."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.json").write_text(json.dumps(TOY))
    return tmp_path / "toy"


def test_a_plan_of_another_device_loads_and_times_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr("drafterforge.pipelines.plan.measure_device", lambda *_: pytest.fail("timed"))
    typed = ["plan", "target=hf", f"target.model={folder}", "num_domains=4", f"runs_dir={folder}"]
    assert main([*typed, "bandwidth_gb_s=100", "tflops=10"]) == 0
    out = capsys.readouterr().out
    for what in ("answering", "features on disk", "training, memory", "training, time", "bundle", "serving, memory"):
        assert what in out
    assert "the given 100 GB/s and 10" in out and "within a factor of about three" in out


def test_one_rate_without_the_other_is_refused(folder, capsys):
    assert main(["plan", "target=hf", f"target.model={folder}", "tflops=10"]) == 2
    assert "type both, or neither" in capsys.readouterr().err


def test_a_folder_without_a_config_is_refused(tmp_path, capsys):
    assert main(["plan", "target=hf", f"target.model={tmp_path}", "bandwidth_gb_s=1", "tflops=1"]) == 2
    assert "holds no config.json" in capsys.readouterr().err
