"""scripts/papers_reports.py runs the steps that are missing or old, and keeps what the tables read."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafterforge.reporting.code_state import code_state
from drafterforge.reporting.papers.step import REPLAY
from drafterforge.reporting.papers.steps import STEPS
from tests.reporting.builders import full_report, replay_row

ROOT = Path(__file__).parents[1]
DOMAINS = next(step for step in STEPS if step.name == "domains")


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script, with commands that write a report instead of measuring; `commands` lists them."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("papers_reports")
    commands: list[list[str]] = []

    def run(command):
        commands.append(command)
        names = [word.partition("=")[2] for word in command if word.startswith("name=")] or ["planner"]
        name = f"policy-{names[0]}" if "train-policy" in command else names[0]
        (runs,) = (Path(word.partition("=")[2]) for word in command if word.startswith("runs_dir="))
        folder = runs / module.TARGET / "reports" / name
        folder.mkdir(parents=True, exist_ok=True)
        content = full_report(rows=[replay_row("sql alone", "static", 2.0)]) | {"code": code_state()}
        (folder / "report.json").write_text(json.dumps(content))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(module.subprocess, "run", run)
    paths = ["--runs", str(tmp_path / "runs"), "--root", str(tmp_path)]
    (tmp_path / "docs" / "reports").mkdir(parents=True)
    return SimpleNamespace(
        main=lambda *words: module.main([*words, *paths]), run=run, module=module, commands=commands, root=tmp_path
    )


def test_a_missing_step_is_measured_kept_and_then_up_to_date(script, capsys):
    assert script.main("domains") == 0
    assert [command[1:5] for command in script.commands] == [["-m", "drafterforge", "eval", "suite=domains"]]
    content = json.loads((script.root / "docs" / "reports" / "papers" / "papers-domains.json").read_text())
    assert content["rows"] and set(content["curves"]) == {"mat_by_domain", "scaling", "replayed", "profile"}
    assert script.main("domains") == 0
    assert len(script.commands) == 1 and "domains: replay, about 8 min, up to date" in capsys.readouterr().out


def test_a_report_of_older_code_is_measured_again(script, capsys):
    folder = script.root / "docs" / "reports" / "papers"
    folder.mkdir(parents=True)
    old = full_report(rows=[replay_row("sql alone", "static", 2.0)]) | {"code": {}}
    (folder / "papers-domains.json").write_text(json.dumps(old))
    assert script.main("--list", "domains") == 0
    assert "domains: replay, about 8 min, older than the code" in capsys.readouterr().out and not script.commands
    assert script.main("domains") == 0 and len(script.commands) == 1


def test_questions_have_to_be_named_and_unknown_steps_are_refused(script, capsys):
    policy = script.root / "runs" / "ltd" / "smollm2-135m" / "policies" / "ltd"
    policy.mkdir(parents=True)
    assert script.main("ltd") == 2 and policy.is_dir()
    assert capsys.readouterr().err == "step ltd reads question files; type --questions FOLDER\n"
    assert script.main("benchmarks") == 2
    assert capsys.readouterr().err == "step benchmarks reads question files; type --questions FOLDER\n"
    assert script.main("ltd-mmlu", "--questions", "Q") == 2
    assert capsys.readouterr().err == "step ltd-mmlu reads question files; type --mmlu FOLDER\n"
    assert script.main("nothing") == 2
    assert capsys.readouterr().err.startswith("there is no step 'nothing'; steps are domains, benchmarks")


def test_the_best_static_tree_of_the_trained_policies_is_decoded_beside_them(script):
    policies = script.root / "runs" / "resps" / "smollm2-135m" / "policies"
    for name in ("resps", "resps-seed2", "planner-kept"):
        (policies / name).mkdir(parents=True)
    assert script.main("resps", "--questions", "Q") == 0
    assert [path.name for path in policies.iterdir()] == ["planner-kept"]  # the step trains its policies again
    *training, measuring = script.commands
    assert [command[3] for command in training] == ["train-policy"] * 4
    (methods,) = [word for word in measuring if word.startswith("suite.methods=")]
    assert "generalist/60/8/10,generalist/8/3/4,generalist/resps,generalist/resps-seed1," in methods


def test_an_interrupted_step_goes_on_with_the_commands_that_are_left(script, monkeypatch):
    run, policies = script.run, script.root / "runs" / "ltd" / "smollm2-135m" / "policies"
    monkeypatch.setattr(script.module.subprocess, "run", lambda command: SimpleNamespace(returncode=1))
    assert script.main("ltd-ablation", "--questions", "Q") == 1
    (policies / "ltd-size").mkdir(parents=True)
    run(["x", "-m", "drafterforge", "train-policy", "name=ltd-size", f"runs_dir={policies.parents[1]}"])
    assert script.main("ltd-ablation", "--questions", "Q") == 1
    assert (policies / "ltd-size").is_dir()  # its report is finished
    monkeypatch.setattr(script.module.subprocess, "run", run)
    script.commands.clear()
    assert script.main("ltd-ablation", "--questions", "Q") == 0
    names = [word for command in script.commands for word in command if word.startswith("name=")]
    assert names == ["name=ltd-depth", "name=ltd-independent", "name=papers-ltd-ablation"]
    script.commands.clear()
    assert script.main("ltd-ablation", "--questions", "Q", "--again") == 0
    assert len(script.commands) == 4 and not (policies / "ltd-size").exists()


def test_a_policy_that_was_trained_before_an_interruption_is_used_and_one_of_older_code_is_not(script, monkeypatch):
    policies = script.root / "runs" / "ltd" / "smollm2-135m" / "policies"
    with monkeypatch.context() as patch:
        patch.setattr(script.module.subprocess, "run", lambda command: SimpleNamespace(returncode=1))
        assert script.main("ltd-ablation", "--questions", "Q") == 1
        (policies / "ltd-size-seed1").mkdir(parents=True)
        assert script.main("ltd-ablation", "--questions", "Q") == 1
        assert (policies / "ltd-size-seed1").is_dir()
        patch.setattr(script.module, "code_state", lambda: dict.fromkeys(code_state(), "newer"))
        assert script.main("ltd-ablation", "--questions", "Q") == 1
    assert not (policies / "ltd-size-seed1").exists()


def newer(*parts):
    """Today's code with other parts."""
    return code_state() | dict.fromkeys(parts, "newer")


def test_what_policies_are_trained_on_is_shared_by_steps_of_one_folder_and_dropped_with_its_code(script, monkeypatch):
    folder = script.root / "runs" / "ltd" / "smollm2-135m"
    artifacts = [folder / name for name in ("latency/general", "traces/ltd-paper", "policies/ltd-size-time")]
    assert script.main("ltd-rewards", "--questions", "Q") == 0
    for path in artifacts:
        path.mkdir(parents=True)
    assert script.main("ltd-ablation", "--questions", "Q") == 0
    assert all(path.is_dir() for path in artifacts)  # of the same code
    monkeypatch.setattr(script.module, "code_state", lambda: newer("prices"))
    assert script.main("ltd-devices") == 0
    assert [path.is_dir() for path in artifacts] == [False, True, True]


def test_a_policy_that_was_priced_by_older_kernels_is_trained_again(script, monkeypatch):
    policy = script.root / "runs" / "ltd" / "smollm2-135m" / "policies" / "ltd-size-time"
    assert script.main("ltd-rewards", "--questions", "Q") == 0
    unfinished = policy.with_name(".ltd-size-length.partial")
    for path in (policy, unfinished):
        path.mkdir(parents=True)
    (script.root / "docs" / "reports" / "papers" / "papers-ltd-rewards.json").unlink()
    script.commands.clear()
    assert script.main("ltd-rewards", "--questions", "Q") == 0
    assert policy.is_dir() and unfinished.is_dir() and script.commands == []
    (script.root / "docs" / "reports" / "papers" / "papers-ltd-rewards.json").unlink()
    monkeypatch.setattr(script.module, "code_state", lambda: newer("kernels"))
    assert script.main("ltd-rewards", "--questions", "Q") == 0
    assert not policy.exists() and not unfinished.exists() and len(script.commands) == 3


def test_a_kill_during_a_deletion_repeats_it(script, monkeypatch):
    traces = script.root / "runs" / "ltd" / "smollm2-135m" / "traces"
    assert script.main("ltd-rewards", "--questions", "Q") == 0
    traces.mkdir()
    monkeypatch.setattr(script.module, "code_state", lambda: newer("tree"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(script.module.shutil, "rmtree", interrupt)
        script.main("ltd-rewards", "--questions", "Q")
    assert traces.is_dir()
    assert script.main("ltd-rewards", "--questions", "Q") == 0 and not traces.exists()


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_router_is_trained_again_by_newer_code_of_routers(script, monkeypatch):
    router = script.root / "runs" / "smollm2-135m" / "policies" / "router"
    monkeypatch.setattr(script.module.subprocess, "run", lambda command: SimpleNamespace(returncode=1))
    assert script.main("router") == 1
    router.mkdir(parents=True)
    monkeypatch.setattr(script.module, "code_state", lambda: newer("policy titles"))
    assert script.main("router") == 1 and router.is_dir()
    monkeypatch.setattr(script.module, "code_state", lambda: newer("router"))
    assert script.main("router") == 1 and not router.exists()


def test_drafters_of_a_table_are_trained_in_a_runs_folder_of_their_pool(script):
    assert script.main("many-drafters") == 0
    folders = {word for command in script.commands for word in command if word.startswith("runs_dir=")}
    assert folders == {f"runs_dir={script.root / 'runs' / 'pools'}"}
    assert [command[3] for command in script.commands] == ["prepare-data", *["train-drafter"] * 3, "eval"]


def test_replays_come_before_steps_that_need_a_machine_at_rest(script, capsys):
    kinds = [step.by for step in STEPS]
    assert kinds == sorted(kinds, key=lambda kind: kind != REPLAY)
    assert script.main("--list", "--replay") == 0
    assert len(capsys.readouterr().out.splitlines()) == kinds.count(REPLAY) + 1


def test_a_report_with_a_path_of_this_machine_is_not_kept(script, monkeypatch, capsys):
    module = importlib.import_module("papers_reports")
    report = full_report(rows=[replay_row("sql alone", "static", 2.0, note="/home/somebody/x")])
    monkeypatch.setattr(module, "read_report", lambda path: report)
    monkeypatch.setattr(module.subprocess, "run", lambda command: SimpleNamespace(returncode=0))
    assert script.main("domains") == 2
    assert "report papers-domains names '/home/somebody/x'; remove" in capsys.readouterr().err
