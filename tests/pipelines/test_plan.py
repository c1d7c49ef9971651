"""`plan COMMAND` says what the command takes: by trials of the real target, or from a config.json and nothing else."""

from __future__ import annotations

import json
import shlex
import shutil
from functools import partial

import pytest

from drafterforge.artifacts.folder import write_artifact
from drafterforge.cli import main
from drafterforge.evaluation import stage_trials
from drafterforge.evaluation.planning import measure_device
from tests.data.prompt_files import write_lines
from tests.evaluation.test_planning import TOY
from tests.tiny import save_tiny_target

SMOKE = ["experiment=smoke", "drafter.draft_vocab_size=64"]


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch) -> None:
    """The disk is timed by a megabyte, and the processor by small products."""
    monkeypatch.setattr(stage_trials, "BLOCK", 2**20)
    monkeypatch.setattr("drafterforge.pipelines.plan.measure_device", partial(measure_device, side=64, repeats=2))


@pytest.fixture
def folder(tmp_path):
    """A target without weights."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.json").write_text(json.dumps(TOY))
    return tmp_path / "toy"


def planned(folder, *typed: str, command: str = "train-drafter") -> int:
    runs = f"runs_dir={folder.parent / 'runs'}"
    return main(["plan", command, "domain=sql", "target=hf", f"target.model={folder}", runs, *typed])


def suggested(out: str) -> list[str]:
    """The command that a plan says to fit, without `drafterforge`."""
    (line,) = [line for line in out.splitlines() if line.startswith("estimated to fit: ")]
    return shlex.split(line)[4:]


def test_a_plan_for_another_device_loads_and_times_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr("drafterforge.pipelines.plan.measure_device", lambda *_: pytest.fail("timed"))
    monkeypatch.setattr("drafterforge.pipelines.plan.load_target", lambda *_: pytest.fail("loaded"))
    assert planned(folder, "device=h100") == 0
    out = capsys.readouterr().out
    for words in ("answers", "features", "training", "decoding", "in all: about", "h100, 3350 GB/s and 989 TFLOP/s"):
        assert words in out
    assert "within a factor of about three" in out and "next: drafterforge train-drafter domain=sql" in out
    assert planned(folder, "device=h100", command="prepare-data") == 0
    assert "training" not in capsys.readouterr().out


def test_the_lines_of_a_file_are_planned_and_no_more(folder, tmp_path, capsys):
    path = write_lines(tmp_path / "mine.jsonl", [{"prompt": f"question {number}"} for number in range(40)])
    assert planned(folder, "device=h100", "data=jsonl", f"path={path}", command="prepare-data") == 0
    assert " 40 answers" in " ".join(capsys.readouterr().out.split())


def test_a_device_that_is_not_here_decides_nothing_by_this_one(folder, capsys, monkeypatch):
    monkeypatch.setattr("drafterforge.pipelines.plan.choose_device", lambda *_: pytest.fail("looked for"))
    monkeypatch.setattr("drafterforge.targets.device.choose_dtype", lambda *_: pytest.fail("chosen by this device"))
    assert planned(folder, "device=h100", "target.device=cuda", command="prepare-data") == 0


def test_the_name_of_a_device_alone_is_refused(folder, capsys):
    assert planned(folder, "device.name=h100") == 2
    assert "device.name=h100 is only a name; type device=h100" in capsys.readouterr().err


def test_kinds_that_only_trials_can_plan_are_refused_without_them(folder, capsys):
    assert planned(folder, "device=h100", "drafter=block") == 2
    assert "plan estimates drafter=block only by trials" in capsys.readouterr().err
    assert planned(folder, "device=h100", "drafter=retrieval") == 0
    assert "features" not in capsys.readouterr().out


def test_what_does_not_fit_comes_with_what_to_type(folder, capsys):
    typed = ["device=h100", "device.disk_gb=0.2", "data.num_train=20000"]
    assert planned(folder, *typed) == 1
    captured = capsys.readouterr()
    assert "does not fit: disk: " in captured.out and captured.err == "drafterforge: train-drafter does not fit\n"
    command = suggested(captured.out)
    assert "data.num_train=20000" in command and "data.features=online" in command
    assert main(["plan", *command, *typed[:2]]) == 0
    assert "fits: " in capsys.readouterr().out


def test_the_command_that_is_suggested_fits_in_memory_and_on_disk(folder, capsys):
    typed = ["device=h100", "device.memory_gb=0.003", "device.disk_gb=0.002", "drafter=eagle3"]
    assert planned(folder, *typed, "data.batch_size=512", "trainer.tokens_per_batch=20000") == 1
    out = capsys.readouterr().out
    assert "does not fit: disk: " in out and "memory of answers: " in out and "memory of training: " in out
    assert main(["plan", *suggested(out), *typed[:3]]) == 0


def test_what_nothing_mends_is_said_at_once(folder, capsys):
    assert planned(folder, "device=h100", "device.memory_gb=0.000001", "target.dtype=float32") == 1
    out = capsys.readouterr().out
    assert "no setting that plan tries makes it fit" in out and "a device with more memory is needed" in out
    assert planned(folder, "device=h100", "device.disk_gb=0.000001", "data.num_train=1") == 1
    out = capsys.readouterr().out
    assert "more disk is needed" in out and "estimated to fit" not in out


def test_a_lora_is_planned_where_the_command_would_train_it(folder, capsys):
    path = folder.parent / "runs" / "toy" / "drafters" / "general"
    config = {"drafter": {"kind": "eagle3", "tuning": "full"}, "domain": "general"}
    with write_artifact(path, kind="drafters", name="general", target="toy", target_fingerprint="", config=config):
        pass
    tables = []
    for typed in ([], ["drafter=lora"], ["drafter=eagle3"]):
        assert planned(folder, "device=h100", *typed) == 0
        captured = capsys.readouterr()
        assert ("sql adds a LoRA to general" in captured.err) == (not typed)
        tables.append(captured.out.partition("fits: ")[0])
    assert tables[0] == tables[1] != tables[2]


def test_answers_that_estimates_do_not_read_are_mentioned(folder, capsys):
    assert planned(folder, "device=h100") == 0
    assert "reads no answers" not in capsys.readouterr().out
    (folder.parent / "runs" / "toy" / "answers" / "sql").mkdir(parents=True)
    assert planned(folder, "device=h100") == 0
    assert "reads no answers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("devices", "words"), [("device=h100", "that of each device"), ("target.device=cpu", "that of all processes")]
)
def test_several_devices_are_planned(folder, capsys, devices, words):
    trainer = ["trainer.devices=2", "trainer.num_nodes=2", "trainer.accumulate=4"]
    assert planned(folder, devices, *trainer) == 0
    assert "4 take less" in (out := capsys.readouterr().out) and words in out


def test_artifacts_of_other_settings_are_refused_as_by_the_command(tmp_path, capsys):
    target = save_tiny_target(tmp_path / "tiny")
    runs = f"runs_dir={tmp_path / 'runs'}"
    train = ["train-drafter", "domain=sql", "target=hf", f"target.model={target}", runs, *SMOKE]
    assert main(train) == 0
    capsys.readouterr()
    for changed in ("data.max_new_tokens=7", "trainer.lr=0.5", "data.num_train=7"):
        assert main([*train, changed]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "was made with other settings" in line
        assert planned(target, *SMOKE, changed) == 2
        assert capsys.readouterr().err.splitlines()[-1] == line
    shutil.rmtree(tmp_path / "runs" / target.name / "drafters" / "sql")
    for staged, changed in (
        ("answers/.new.partial", ["name=new"]),
        ("drafters/.sql.partial", []),
    ):  # of killed commands
        staging = tmp_path / "runs" / target.name / staged
        staging.mkdir()
        (staging / "config.json").write_text("{}")
        (staging / "shard").write_text("")
        assert main([*train, *changed]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert f"{staged} has unfinished work of other settings" in line
        assert planned(target, *SMOKE, *changed) == 2
        assert capsys.readouterr().err.splitlines()[-1] == line
    assert planned(target, *SMOKE, "name=other", "device.disk_gb=0.00001", "answers=[sql]") == 1
    out = capsys.readouterr().out
    assert "data.num_train" not in out  # the answers exist


def test_a_target_that_the_hub_does_not_give_is_refused_after_one_attempt(tmp_path, capsys, monkeypatch):
    attempts = []

    def refuse(*_, **__):
        attempts.append(1)
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refuse)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda **_: pytest.fail("tried for a minute"))
    assert main(["plan", "prepare-data", "domain=sql", "target=hf", "target.model=nobody/nothing"]) == 2
    assert "could not fetch config.json of target.model=nobody/nothing" in capsys.readouterr().err and attempts


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
    assert "sql was trained before" in " ".join(out.split())


def test_a_plan_of_answers_alone_by_trials(tmp_path, capsys):
    target = save_tiny_target(tmp_path / "tiny")
    assert planned(target, "experiment=smoke", command="prepare-data") == 0
    out, err = capsys.readouterr()
    assert "by trials" in out and "decoding" not in out
    assert "plan: answering some prompts\n" in err and "training" not in err


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
    typed = ["data=jsonl", f"path={tmp_path / 'given.jsonl'}", "data.answers=given"]
    assert planned(target, "experiment=smoke", *typed, command="prepare-data") == 0
    out = capsys.readouterr().out
    assert "given with the prompts" in out and "twice" not in out


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (["domain=sql", "data.stream=ring"], "plan does not cover data.stream=ring"),
        (["domain=[sql,python]", "drafter=lora"], "plan takes one drafter, got lists of 2"),
    ],
)
def test_what_is_not_planned_is_refused_before_anything_is_read(typed, line, capsys, monkeypatch):
    monkeypatch.setattr("drafterforge.pipelines.plan.run", lambda *_: pytest.fail("planned"))
    assert main(["plan", "train-drafter", *typed]) == 2
    assert line in capsys.readouterr().err


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


def test_rates_of_another_device_without_its_memory_are_refused(folder, capsys):
    assert planned(folder, "device.tflops=10", "device.bandwidth_gb_s=100") == 2
    assert "type device.memory_gb too" in capsys.readouterr().err


def test_a_mistake_in_the_command_is_the_command_s(folder, capsys):
    assert planned(folder, "trainer.max_step=3") == 2
    assert "did you mean trainer.max_steps" in capsys.readouterr().err


def test_a_folder_without_a_config_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert planned(tmp_path / "empty", "device=h100") == 2
    assert "holds no config.json" in capsys.readouterr().err
