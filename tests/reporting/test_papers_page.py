"""The page of the papers' tables: verdicts, sources, old rows, and the script that writes it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from drafterforge.reporting.code_state import code_state
from drafterforge.reporting.papers.age import is_current, old_rows
from drafterforge.reporting.papers.claims import Claim, judge
from drafterforge.reporting.papers.forms import FORMS
from drafterforge.reporting.papers.page import render_papers
from drafterforge.reporting.papers.tables import paper_tables
from drafterforge.reporting.published import published
from tests.reporting.builders import full_report, replay_row
from tests.reporting.paper_builders import POOL, alone, report, with_policy

SCRIPT = Path(__file__).parents[2] / "scripts" / "papers_tables.py"


def test_a_row_is_old_if_a_part_of_the_code_behind_it_or_its_drafter_changed():
    code = {"drafters": "1", "replay": "1", "tree": "1", "selectors": "1"}
    row = replay_row("ucbspec", "ucbspec", 2.0, domain="alpaca", options={})
    measured = report(row) | {"code": code, "parents": [{"kind": "drafters", "name": "sql", "sha256": "a"}]}
    evidence, forms = paper_tables([measured])

    def lines(code, drafters):
        return old_rows(evidence, forms, ["bench"], code, drafters)

    assert lines(code | {"kernels": "2"}, {"sql": "a"}) == []  # kernels decide no replay
    assert lines(code | {"selectors": "2"}, {}) == ["bench: ucbspec on alpaca is older than selectors"]
    assert lines(code, {"sql": "b"}) == ["bench: ucbspec on alpaca is older than drafter sql"]
    assert is_current(measured, code, {"sql": "a"}) and not is_current(measured, code, {"sql": "b"})
    assert not is_current(measured, code | {"selectors": "2"}, {})


def test_a_report_of_a_policy_is_old_if_the_code_that_trained_it_changed():
    code = dict.fromkeys(("drafters", "replay", "tree", "schedulers", "policy training", "prices"), "1")
    for rows in ([], [replay_row("policy resps", "static", 2.0)]):
        measured = full_report(rows=rows) | {"code": code}
        assert is_current(measured, code, {}) and not is_current(measured, code | {"policy training": "2"}, {})


def test_a_report_of_a_router_is_old_if_the_code_of_routers_changed():
    code = dict.fromkeys(("drafters", "replay", "tree", "router"), "1")
    measured = full_report(rows=[{"prompts": "as written", "accuracy": 0.9}]) | {"code": code, "curves": {}}
    assert is_current(measured, code, {}) and not is_current(measured, code | {"router": "2"}, {})


def test_a_report_that_does_not_say_its_code_is_old():
    evidence, forms = paper_tables([report(replay_row("general alone", "static", 2.0, domain="qa"))])
    code = {"drafters": "1", "replay": "1", "tree": "1"}
    assert old_rows(evidence, forms, ["r"], code, {}) == ["r: general alone on qa is older than drafters, replay, tree"]


@pytest.mark.parametrize(
    ("values", "references", "verdict"),
    [
        ({"a": 2.0, "b": 3.0}, {"a": 1.0, "b": 2.5}, ("MAT 2.50 against 1.75, in 2 of 2 columns", "holds")),
        ({"a": 2.0, "b": 2.0}, {"a": 1.0, "b": 2.5}, ("MAT 2.00 against 1.75, in 1 of 2 columns", "depends")),
        ({"a": 2.0, "b": 9.0}, {"a": 3.0}, ("MAT 2.00 against 3.00", "does not hold")),
        ({}, {"a": 3.0}, ("", "not measured")),
    ],
)
def test_a_claim_is_judged_by_the_columns_that_both_methods_have(values, references, verdict):
    assert judge(Claim("ltd", "x", "ltd", "mat", "m", "o"), values, references) == verdict


def test_a_claim_about_gpus_leaves_columns_of_a_cpu_out():
    claim = Claim("ltd", "x", "priced", "priced", "m", "o", left_out="cpu")
    values, references = {"cpu, 2 threads": 2.0, "A100": 1.0}, {"cpu, 2 threads": 1.0, "A100": 2.0}
    assert judge(claim, values, references) == ("1.00x against 2.00x", "does not hold")
    assert judge(claim, {"cpu, 2 threads": 2.0}, {"cpu, 2 threads": 1.0}) == ("", "not measured")


def test_differences_below_the_deviation_over_seeds_decide_nothing():
    claim = Claim("ltd", "x", "ltd", "mat", "m", "o")
    values, references = {"a": 2.0, "b": 3.0}, {"a": 2.1, "b": 2.9}
    assert judge(claim, values, references, {"a": 0.2, "b": 0.2})[1] == "too close to tell"
    assert judge(claim, values, references, {"a": 0.2, "b": 0.05})[1] == "depends"
    assert judge(claim, {"a": 2.0}, {"a": 2.1}, {})[1] == "does not hold"


def test_a_claim_about_a_number_is_judged_by_the_interval():
    claim = Claim("ltd", "x", "over_best", "over_best", "m", 1.0, only="live")
    values = {"replayed": 0.9, "live": 1.2}
    for interval, verdict in (((0.9, 1.5), "too close to tell"), ((1.1, 1.5), "holds")):
        assert judge(claim, values, {}, {}, {"live": interval}) == ("1.200x against 1.000x", verdict)
    claim = Claim("ltd", "x", "ltd_overhead", "schedule_of_total", "m", 1.5, least=None, most=1.0)
    measured = "4.00 against 1.50 % of the time, policy, in 1 of 2 columns"
    assert judge(claim, {"a": 1.0, "b": 7.0}, {}) == (measured, "depends")


def test_columns_of_few_prompts_are_judged_by_their_mean():
    claim = Claim("hedgespec", "x", "hedgespec", "tokens_per_s", "m", "o", by_mean=True)
    values, references = {"a": 10.0, "b": 30.0}, {"a": 15.0, "b": 20.0}
    assert judge(claim, values, references) == ("tokens/s 20.0 against 17.5, mean of 2 columns", "holds")


def test_policies_that_play_the_same_trees_are_not_compared():
    for mat, verdict in ((1.9, "the same trees"), (1.8, "does not hold")):
        rows = [with_policy("ltd", "gsm8k", 1.1) | {"mat": 1.9}, with_policy("ltd-independent", "gsm8k", 1.3)]
        evidence, forms = paper_tables([report(rows[0], rows[1] | {"mat": mat})])
        line = next(line for line in render_papers(evidence, forms).splitlines() if "trained separately |" in line)
        assert line.split(" | ")[3] == verdict


def test_a_reward_that_prefers_another_drafter_tells_none_apart():
    signals = [
        {"domain": "gsm8k", "reward": reward, "signal": value, "agrees": agrees}
        for reward, value, agrees in (("divergence", 0.1, True), ("efficiency", 0.5, False))
    ]
    evidence, forms = paper_tables([report(alone("general", "gsm8k"), signal_strength=signals)])
    text = render_papers(evidence, forms)
    assert "(0.5000)" in text and "signal strength R 0.1000 against 0.0000 | holds" in text


def test_tables_say_how_many_prompts_are_behind_a_cell_and_how_many_trees_a_policy_used():
    replayed = [{"name": "policy ltd", "actions": 1}, {"name": "policy ltd-size", "actions": 10}]
    rows = [with_policy("ltd", "gsm8k", 1.1) | {"num_prompts": 4}, with_policy("ltd", "qa", 1.1) | {"num_prompts": 3}]
    evidence, forms = paper_tables([report(*rows, replayed=replayed)])
    text = render_papers(evidence, forms)
    assert "Trees that a policy used in its replay: size policy alone 10; LTD 1. With one, it is a fixed tree." in text
    assert "Prompts behind a cell: 4 timed (3 in QA)." in text


def test_a_claim_about_one_method_compares_its_last_column_with_its_first():
    claim = Claim("hedgespec", "x", "scaling", "mat", "m", "m", least=None, most=1.0)
    assert judge(claim, {"N = 1": 2.0, "N = 2": 9.0, "N = 3": 1.5}, {}) == ("MAT 1.50 against 2.00", "holds")


def test_markdown_has_every_table_and_every_source():
    evidence, forms = paper_tables([full_report()])
    text = render_papers(evidence, forms)
    assert text.startswith("# The papers' tables: tiny, cpu, float32\n")
    for table in published().tables:
        assert f"]({table.read})" in text
        assert f"({table.version}); target {table.target}; {table.hardware}" in text
    assert text.count("## ") == len(FORMS) + 1  # and the verdicts
    assert "| LTD | speed-up | 3.96x | 3.79x | 4.53x | 3.41x | 3.92x |" in text
    assert "| MetaSpS-EXP3 | speed-up |  |  |  |  |  |" in text


def script():
    spec = importlib.util.spec_from_file_location("papers_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_the_script_prints_and_writes_the_cells_of_partial_reports(tmp_path, capsys):
    for name, content in (("a", report(alone("boss", "qa"))), ("b", report(alone("boss", "alpaca")))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(content))
    out = tmp_path / "tables.md"
    arguments = [str(tmp_path / "a"), str(tmp_path / "b" / "report.json"), "--generalist", "boss", "--out", str(out)]
    assert script()(arguments) == 0
    assert "| EAGLE-3 (our tree for this device) | MAT |  |  | 2.00 | 2.00 |  |" in out.read_text()
    assert "28 of 32 cells not measured; type:" in capsys.readouterr().out


def test_a_mistake_of_the_script_is_one_line(tmp_path, capsys):
    assert script()([str(tmp_path / "nowhere")]) == 2
    assert re.fullmatch(r"cannot read .*nowhere.*\n", capsys.readouterr().err)


@pytest.fixture
def root(tmp_path):
    """A folder with one report of today's code, and a reason for every cell."""
    folder = tmp_path / "docs" / "reports"
    (folder / "papers").mkdir(parents=True)
    measured = report(replay_row("general alone", "static", 2.0, domain="qa", drafters=POOL)) | {"code": code_state()}
    (folder / "papers" / "papers-domains.json").write_text(json.dumps(measured))
    reasons = {form.key: [] for form in FORMS} | {"all": [{"why": "not measured: yet"}]}
    (folder / "papers.yaml").write_text(json.dumps(reasons))
    return tmp_path


def test_check_accepts_a_page_with_a_reason_for_every_cell(root, capsys):
    assert script()(["--root", str(root)]) == 0
    assert script()(["--check", "--root", str(root)]) == 0
    assert capsys.readouterr().out.endswith("every cell is filled or explained, and no row is old\n")


def test_check_prints_empty_cells_old_rows_and_an_old_page(root, capsys):
    assert script()(["--root", str(root)]) == 0
    folder = root / "docs" / "reports"
    content = json.loads((folder / "papers" / "papers-domains.json").read_text())
    (folder / "papers" / "papers-domains.json").write_text(json.dumps(content | {"code": {}}))
    reasons = json.loads((folder / "papers.yaml").read_text())
    reasons["all"] = [{"why": "not measured: yet", "method": "[!L]*"}]
    (folder / "papers.yaml").write_text(json.dumps(reasons))
    capsys.readouterr()
    assert script()(["--check", "--root", str(root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith("LTD: tasks of MMLU: LTD, faster_tasks, MMLU is empty without a reason") for line in lines
    )
    assert "papers-domains: general alone on qa is older than drafters, replay, tree" in lines
    assert any("is out of date; type `python scripts/papers_tables.py`" in line for line in lines)
    assert lines[-1] == f"{len(lines) - 1} faults"


def test_without_reports_the_script_says_what_makes_them(tmp_path, capsys):
    assert script()(["--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("has no report; type `python scripts/papers_reports.py`\n")
