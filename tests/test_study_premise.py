"""The study of experts: its commands are accepted, and its figures are those of the replayed cycles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drafterforge.cli.overrides import read_config
from drafterforge.evaluation.measurements import FILE, Measurement, RequestInfo, save_measurements
from drafterforge.runtime.rows import Cycle, Generation
from tests.test_scripts import SCRIPTS, import_script

DOMAINS = ("chat", "clinical", "math", "sql")
TOKENS = 12  # of every answer
VALIDATIONS = {  # accept lengths by step
    "math-full": {0: 1.0, 20: 1.25, 40: 1.5},
    "sql-full": {0: 2.0, 20: 2.5},  # ended early
    "math-lora": {0: 1.0, 20: 1.25, 40: 1.0},
    "sql-lora": {0: 1.0, 20: 1.25, 40: 1.25},
    "control": {0: 1.0, 40: 1.5, 80: 2.0},
}


@pytest.fixture
def study(monkeypatch):
    return import_script(next(path for path in SCRIPTS if path.stem == "study_premise"), monkeypatch)


@pytest.fixture
def folder(tmp_path) -> Path:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    for name in DOMAINS:
        (prompts / f"{name}.jsonl").write_text(json.dumps({"prompt": "Count users."}) + "\n")
    return prompts


def write_replays(report: Path, lengths: dict[str, dict[str, int]]) -> None:
    """Three answers of each domain.  lengths: method -> domain -> accept length of all cycles."""
    report.mkdir(parents=True)
    measurements = []
    for method, by_domain in lengths.items():
        for number, (domain, length) in enumerate((domain, n) for domain, n in by_domain.items() for _ in range(3)):
            cycles = [
                Cycle(depth=4, num_nodes=5, accept_length=length, accepted=length - 1, drafter="", top_k=1)
                for _ in range(TOKENS // length)
            ]
            request = RequestInfo(number, domain, question=f"{domain}-{number % 3}")
            answer = Generation([], list(range(TOKENS)), cycles=cycles)
            measurements.append(Measurement(method, [request], [answer], source="replay", group=number))
    save_measurements(report / FILE, measurements)


def write_validations(drafter: Path, lengths: dict[int, float]) -> None:
    """The curve of a training.  lengths: step -> validation accept length."""
    drafter.mkdir(parents=True)
    rows = [{"step": step, "val/accept_length": length} for step, length in lengths.items()]
    (drafter / "curves.json").write_text(json.dumps([*rows, {"step": 90, "train/loss": 1.0}]))


def test_every_command_is_accepted(study, folder):
    plan = study.Plan(folder, folder, "chat", "clinical", num_questions=80, expert_steps=240)
    steps = list(plan.steps())
    for step in steps:
        read_config(step.words[0], list(step.words[1:]))
    assert [step.name for step in steps if step.kind == "drafters"] == [
        *("public", "clinical-full", "clinical-lora", "math-full", "math-lora", "sql-full", "sql-lora", "control")
    ]
    control = next(step for step in steps if step.name == "control")
    experts = [step for step in steps if "experiment=premise_expert" in step.words]
    assert experts and all("trainer.max_steps=240" in step.words for step in experts)
    assert "trainer.max_steps=480" in control.words  # as many as two experts take
    assert "answers=[n-chat,n-math,n-sql]" in control.words  # not those of the unseen domain


def test_figures_are_ratios_of_mat(study, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(study, "run", lambda *_: 0)
    reports = tmp_path / "runs" / "smollm2-135m" / "reports"
    public = dict.fromkeys(DOMAINS, 2)
    for tuning, gain in (("full", 4), ("lora", 3)):
        alone = {f"{name}-{tuning} alone": public | {name: gain} for name in ("math", "sql")}
        hedge = {"hedgespec": public | {"math": gain, "sql": gain}, "hedgespec-prompt": public | {"sql": gain}}
        write_replays(reports / f"premise-{tuning}", {"public alone": public, **alone, **hedge})
    control = {"public alone": public, "control alone": dict.fromkeys(DOMAINS, 3)}
    write_replays(reports / "premise-control", control)
    unseen = {"public": 2, "clinical-full": 4, "clinical-lora": 6}
    write_replays(reports / "premise-clinical", {f"{name} alone": {"clinical": n} for name, n in unseen.items()})
    for name in ("math-full", "sql-full", "math-lora", "sql-lora", "control"):
        write_validations(tmp_path / "runs" / "smollm2-135m" / "drafters" / name, VALIDATIONS[name])
    path = tmp_path / "premise.json"
    assert study.main([str(folder), str(folder), "--json", str(path), f"runs_dir={tmp_path / 'runs'}"]) == 0
    record = json.loads(path.read_text())
    figures = record["figures"]
    assert (figures["experts_full"], figures["experts_lora"]) == (2.0, 1.5)
    assert (figures["unseen_full"], figures["unseen_lora"], figures["unseen_control"]) == (2.0, 3.0, 1.5)
    assert (figures["control"], figures["control_low"], figures["control_high"]) == (1.5, 1.5, 1.5)
    # per domain 6 cycles a prompt with `public`, 3 with a full expert and 4 with the control
    assert figures["hedge_full"] == pytest.approx(18 / 12)
    assert figures["hedge_full_low"] < figures["hedge_full"] < figures["hedge_full_high"]
    assert figures["hedge_full_control"] == pytest.approx(12 / 12)
    assert figures["prompt_full"] == pytest.approx(18 / 15)
    rows = {row["domain"]: row for row in record["rows"]}
    assert list(rows) == ["chat", "math", "sql", "clinical"] and rows["sql"]["questions"] == 3
    assert rows["chat"]["experts_full"] is None and rows["clinical"]["experts_lora"] == 6
    assert record["by_steps"] == [
        {"steps": 20, "full": 1.25, "lora": 1.25, "control": 1.5},  # of the control, those of two experts
        {"steps": 40, "full": 1.375, "lora": 1.25, "control": 2.0},
    ]
    assert "experts_full: 2.000 (2.000 to 2.000)" in capsys.readouterr().out


def test_missing_prompts_are_one_line(study, folder, capsys):
    assert study.main([str(folder), str(folder), "--general", "talk"]) == 2
    assert "has no talk.jsonl; type --general and --unseen of" in capsys.readouterr().err
