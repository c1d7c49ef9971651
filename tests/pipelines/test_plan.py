"""`plan COMMAND` says what the command takes: by trials of the real target, or from a config.json and nothing else."""

from __future__ import annotations

import json

import pytest

from drafterforge.cli import main
from tests.data.prompt_files import write_lines
from tests.evaluation.test_planning import TOY
from tests.tiny import save_tiny_target

SMOKE = ["experiment=smoke", "drafter.draft_vocab_size=64"]


@pytest.fixture
def folder(tmp_path):
    """A target without weights."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.json").write_text(json.dumps(TOY))
    return tmp_path / "toy"


def planned(folder, *typed: str, command: str = "train-drafter") -> int:
    runs = f"runs_dir={folder.parent / 'runs'}"
    return main(["plan", command, "domain=sql", "target=hf", f"target.model={folder}", runs, *typed])


def test_a_plan_for_another_device_loads_and_times_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr("drafterforge.pipelines.plan.measure_device", lambda *_: pytest.fail("timed"))
    monkeypatch.setattr("drafterforge.pipelines.plan.load_target", lambda *_: pytest.fail("loaded"))
    assert planned(folder, "device=h100") == 0
    out = capsys.readouterr().out
    for words in ("answers", "features", "training", "decoding", "in all: at most", "h100, 3350 GB/s and 989 TFLOP/s"):
        assert words in out
    assert "within a factor of about three" in out and "next: drafterforge train-drafter domain=sql" in out
    assert planned(folder, "device=h100", command="prepare-data") == 0
    assert "training" not in capsys.readouterr().out


def test_what_does_not_fit_comes_with_what_to_type(folder, capsys):
    assert planned(folder, "device=h100", "device.disk_gb=0.2", "data.num_train=20000") == 0
    out = capsys.readouterr().out
    assert "does not fit: disk takes" in out and "data.num_train=20000" in out and "data.features=online`" in out


def test_a_plan_by_trials_leaves_nothing_behind_and_is_what_then_happens(tmp_path, capsys):
    target = save_tiny_target(tmp_path / "tiny")
    runs = tmp_path / "runs"
    runs.mkdir()
    assert planned(target, *SMOKE) == 0
    out = capsys.readouterr().out
    assert "by trials" in out and "fits:" in out and [*runs.iterdir()] == []
    for words in ("start", "answers", "features", "training", "decoding"):
        assert words in out
    train = ["train-drafter", "domain=sql", "target=hf", f"target.model={target}", f"runs_dir={runs}", *SMOKE]
    assert main(train) == 0
    capsys.readouterr()
    assert planned(target, *SMOKE) == 0  # now answers and features are there
    out = capsys.readouterr().out
    assert "made before: 16 answers of sql" in out and "features" not in out


def test_a_plan_of_answers_alone_by_trials(tmp_path, capsys):
    target = save_tiny_target(tmp_path / "tiny")
    assert planned(target, "experiment=smoke", command="prepare-data") == 0
    out = capsys.readouterr().out
    assert "by trials" in out and "decoding" not in out


@pytest.mark.parametrize("drafter", ["retrieval", "causal_lm"])
def test_other_kinds_are_planned_by_trials_too(tmp_path, capsys, drafter):
    assert planned(save_tiny_target(tmp_path / "tiny"), "experiment=smoke", f"drafter={drafter}") == 0
    assert "training" in capsys.readouterr().out


def test_answers_of_others_are_not_timed(tmp_path, capsys):
    target = save_tiny_target(tmp_path / "tiny")
    served = ["data.answers=served", "data.endpoint=http://localhost:1/v1"]
    assert planned(target, "experiment=smoke", *served, command="prepare-data") == 0
    assert "by the server" in capsys.readouterr().out
    turns = [{"role": "user", "content": "say"}, {"role": "assistant", "content": "this"}]
    rows = [{"messages": [{**turns[0], "content": f"say {number}"}, turns[1]]} for number in range(30)]
    write_lines(tmp_path / "given.jsonl", rows)
    recorded = ["data=jsonl", f"path={tmp_path / 'given.jsonl'}", "data.answers=given"]
    assert planned(target, "experiment=smoke", *recorded, command="prepare-data") == 0
    out = capsys.readouterr().out
    assert "given with the prompts" in out and "twice" not in out


def test_a_stream_is_not_planned(tmp_path, capsys):
    assert planned(save_tiny_target(tmp_path / "tiny"), "data.stream=ring", command="train-drafter") == 2
    assert "plan does not cover data.stream=ring" in capsys.readouterr().err


def test_a_spread_target_is_planned_without_decoding(tmp_path, capsys):
    target = save_tiny_target(tmp_path / "tiny")
    assert planned(target, *SMOKE, "target.device_map=auto", "target.dtype=float32") == 0
    out = capsys.readouterr().out
    assert "training" in out and "decoding" not in out


@pytest.mark.parametrize("typed", [[], ["eval"], ["domain=sql"]])
def test_a_plan_of_no_command_or_of_another_says_what_to_type(typed, capsys):
    assert main(["plan", *typed]) == 2
    assert "plan needs a command, one of prepare-data, train-drafter" in capsys.readouterr().err


def test_one_rate_without_the_other_is_refused(folder, capsys):
    assert planned(folder, "device.tflops=10") == 2
    assert "type both, or neither" in capsys.readouterr().err


def test_a_mistake_in_the_command_is_the_command_s(folder, capsys):
    assert planned(folder, "trainer.max_step=3") == 2
    assert "did you mean trainer.max_steps" in capsys.readouterr().err


def test_a_folder_without_a_config_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert planned(tmp_path / "empty", "device=h100") == 2
    assert "holds no config.json" in capsys.readouterr().err
