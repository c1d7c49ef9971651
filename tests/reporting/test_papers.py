"""The papers' tables: every published number has a source, and our numbers stand in the right cells."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from drafterforge.config.commands import EvaluateConfig, PrepareDataConfig, TrainDrafterConfig, TrainPolicyConfig
from drafterforge.config.compose import load_config
from drafterforge.config.several import split_overrides
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.suite_checks import check_suite
from drafterforge.reporting.code_state import code_state
from drafterforge.reporting.paper_age import is_current, old_rows
from drafterforge.reporting.paper_claims import CLAIMS, Claim, judge
from drafterforge.reporting.paper_evidence import gather
from drafterforge.reporting.paper_forms import FIGURES, FORMS
from drafterforge.reporting.paper_steps import (
    BLACK_BOX,
    EAGLE_TREES,
    EXPERIMENTS,
    HOLD_CYCLES,
    MANY,
    REDUCTIONS,
    STEPS,
    commands_of,
)
from drafterforge.reporting.paper_tables import PaperTable, Reason, paper_tables, render_papers
from drafterforge.reporting.published import published
from drafterforge.selectors import names as selector_names
from drafterforge.selectors.bandit import REWARDS
from tests.reporting.builders import full_report, live_row, replay_row

SCRIPT = Path(__file__).parents[2] / "scripts" / "papers_tables.py"
OURS = {"priced", "over_best", "sampled", "many_drafters"}  # forms of no paper
POOL = ["general", "sql", "retrieval"]
LIMITS = {"tokens_per_s": (20, 200), "actions": (1, 177), "verify_ms": (1, 200), "draft_ms": (0.1, 20)}
LIMITS |= {"select_ms": (0.01, 5), "accuracy": (0, 100), "faster_tasks": (0, 57), "schedule_of_total": (0, 100)}
LIMITS |= {f"{step}_of_overhead": (0, 100) for step in ("draft", "host", "schedule")}
RESPS = ("mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm")


def report(*rows: dict, **more) -> dict:
    return full_report(rows=list(rows), curves=more)


def alone(drafter: str, domain: str, mat: float = 2.0, speedup: float = 1.5, **more) -> dict:
    return live_row(f"{drafter} alone", speedup, None, drafters=[drafter], domain=domain, mat=mat, **more)


def over(selector: str, domain: str, mat: float, **more) -> dict:
    return (
        live_row(f"{selector} over the pool", 1.8, None, selector=selector, drafters=POOL, domain=domain, mat=mat)
        | more
    )


def with_policy(name: str, domain: str, speedup: float) -> dict:
    return alone("general", domain, speedup=speedup) | {"method": f"general alone with {name}", "scheduler": name}


def with_tree(paper: str, domain: str, speedup: float) -> dict:
    """A row of the default tree of a paper's EAGLE-3."""
    return with_policy(EAGLE_TREES[paper], domain, speedup)


def tables(*reports: dict) -> dict[str, PaperTable]:
    return {table.form.key: table for table in paper_tables(reports)[1]}


def cells(table: PaperTable) -> dict[tuple[str, str], dict[str, str]]:
    """Non-empty cells by method and figure."""
    return {
        (method, figure): {name: value for name, value in zip(table.ours.headings[2:], values, strict=True) if value}
        for method, figure, *values in table.ours.cells
        if any(values)
    }


# --- published -----------------------------------------------------------------------------------


def test_every_published_number_has_paper_table_target_hardware_and_address():
    publication = published()
    for table in publication.tables:
        assert re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", publication.papers[table.paper].address)
        assert table.read.startswith("https://")
        assert all((table.table, table.target, table.hardware))
        assert re.match(r"(arXiv v\d|ICLR 20\d\d|ICML 20\d\d|AAAI 20\d\d|ACL Findings 20\d\d), ", table.version)
        assert re.search(r"(Table|Figure) \d|appendix", table.table) or "Number of the" in table.note
        assert table.form in {form.key for form in FORMS}
        for row in table.rows:
            assert row.figure in FIGURES
            assert len(row.values) == len(table.columns)
            assert row.method


def test_unpublished_numbers_are_empty_and_the_note_says_so():
    for table in published().tables:
        if not table.rows or any(None in row.values for row in table.rows):
            assert re.search(r"not in what was read|as reviews .* quote", table.note), table


def test_published_means_are_those_of_their_rows_unless_the_note_says_otherwise():
    checked = 0
    for table in published().tables:
        for row in table.rows:
            if table.columns[-1] != "mean" or len(table.columns) < 3 or None in row.values or "add up" in table.note:
                continue
            *values, mean = row.values
            assert sum(values) / len(values) == pytest.approx(mean, abs=0.011), (table.target, row)
            checked += 1
    assert checked > 30


def test_published_numbers_are_plausible():
    for table in published().tables:
        for row in table.rows:
            for value in filter(None, row.values):
                least, most = LIMITS.get(row.figure, (0.9, 9))
                assert least <= value <= most, (table, row)


def test_every_form_of_a_paper_has_published_tables_beside_it():
    assert {table.form for table in published().tables} == {form.key for form in FORMS} - OURS


def test_lines_name_selectors_that_exist():
    names = {"static", "none", "oracle", *selector_names()}
    signals = next(form for form in FORMS if form.key == "metasd_signal")
    assert {line.selector for form in FORMS if form is not signals for line in form.lines} <= names
    assert [line.selector for line in signals.lines] == ["divergence", "efficiency", "coverage"]
    assert {line.selector for line in signals.lines} == REWARDS.keys()


@pytest.mark.slow
def test_the_commands_that_tables_suggest_exist():
    typed = {tuple(shlex.split(command)) for form in FORMS for command in form.commands}
    assert typed == {tuple(shlex.split(command)) for command in commands_of(tuple(step.name for step in STEPS))}
    by_command = {name: [keys for _, command, *keys in typed if command == name] for _, name, *_ in typed}
    assert by_command.keys() == {"train-policy", "eval", "prepare-data", "train-drafter"}
    expected = {line.schedule for form in FORMS for line in form.lines} | {"router"}
    expected |= {f"resps-hold{count}" for count in HOLD_CYCLES}
    for keys in by_command["train-policy"]:
        cfg = load_config("train_policy", TrainPolicyConfig, keys)
        suffixes = cfg.latency.device, f"t{cfg.traces.temperature:g}"
        name = cfg.name.removesuffix(f"-{suffixes[0]}").removesuffix(f"-{suffixes[1]}")
        assert (name or cfg.policy.name or cfg.policy.method) in expected
        if cfg.live.num_prompts and cfg.policy.method in EXPERIMENTS:
            assert cfg.grid.name == f"{cfg.policy.method}-paper"
            assert cfg.runs_dir == f"runs/{cfg.policy.method}"
            assert cfg.seeds == ([] if name.startswith("resps-hold") else [1, 2])
    for keys in by_command["eval"]:
        check_suite(load_config("eval", EvaluateConfig, keys))
    for keys in by_command["prepare-data"]:
        assert load_config("prepare_data", PrepareDataConfig, keys).name == "papers-answers"
    drafters = []
    for keys in by_command["train-drafter"]:
        for each in split_overrides("train_drafter", TrainDrafterConfig, keys):
            cfg = load_config("train_drafter", TrainDrafterConfig, each)
            assert cfg.answers == ["papers-answers"]
            drafters.append(cfg.drafter_name)
    assert sorted(drafters) == sorted((*BLACK_BOX, *MANY)) and len(MANY) == 32


# --- ours ----------------------------------------------------------------------------------------


def test_selectors_and_drafters_stand_in_their_cells():
    by_form = tables(
        report(
            live_row(
                "autoregressive", 1.0, None, selector="none", scheduler="none", domain="alpaca", mat=1.0, drafters=[]
            ),
            alone("general", "sql", 2.5, 1.25),
            alone("general", "alpaca", 2.25, 1.5),
            over("hedgespec", "sql", 3.25),
            over("ucbspec", "alpaca", 2.75),
            over("metasd_ucb", "humaneval", 3.5, accept_rate=0.625),
            live_row("the domain's expert", 1.5, None, domain="sql", mat=2.75, drafters=["general", "sql"]),
            replay_row("best in hindsight", "oracle", 3.0, domain="sql"),
        )
    )
    assert cells(by_form["hedgespec"]) == {
        ("EAGLE-3 (generalist)", "MAT"): {"sql": "2.50"},
        ("EAGLE-3 (generalist)", "tokens/s"): {"sql": "25.0"},
        ("the domain's expert", "MAT"): {"sql": "2.75"},
        ("the domain's expert", "tokens/s"): {"sql": "30.0"},
        ("HedgeSpec (ours)", "MAT"): {"sql": "3.25"},
        ("HedgeSpec (ours)", "tokens/s"): {"sql": "36.0"},
        ("best in hindsight", "MAT"): {"sql": "3.00"},
    }
    assert cells(by_form["metasd"]) == {
        ("MetaSD-UCB", "speed-up"): {"Code (humaneval)": "1.80x"},
        ("MetaSD-UCB", "MAT"): {"Code (humaneval)": "3.50"},
        ("MetaSD-UCB", "block efficiency"): {"Code (humaneval)": "0.625"},
    }
    assert cells(by_form["banditspec"]) == {
        ("autoregressive", "MAT"): {"Alpaca": "1.00"},
        ("autoregressive", "tokens/s"): {"Alpaca": "20.0"},
        ("EAGLE-3 (generalist)", "MAT"): {"Alpaca": "2.25"},
        ("EAGLE-3 (generalist)", "tokens/s"): {"Alpaca": "30.0"},
        ("UCBSpec", "MAT"): {"Alpaca": "2.75"},
        ("UCBSpec", "tokens/s"): {"Alpaca": "36.0"},
    }


def test_policies_stand_beside_the_default_tree_and_a_complete_row_has_a_mean():
    default = [with_tree("resps", name, 1.0 + 0.1 * index) for index, name in enumerate(RESPS)]
    resps = [with_policy("resps", name, 2 * row["speedup"]) for name, row in zip(RESPS, default, strict=True)]
    text = [with_policy("resps-text", name, 1.0) for name in RESPS[:4]]
    replayed = [{"name": "policy resps (resps)", "mat": 2.0, "tokens_per_s": 9.0, "actions": 18}]
    by_form = tables(report(*default, *resps, *text, replayed=replayed))
    values = cells(by_form["resps"])
    assert values["EAGLE-3 (default tree)", "speed-up"] == {
        "MT-bench": "1.00x",
        "HumanEval": "1.10x",
        "GSM8K": "1.20x",
        "Alpaca": "1.30x",
        "CNN/DM": "1.40x",
        "mean": "1.20x",
    }
    assert values["Re-SpS: standard PPO", "speed-up"]["mean"] == "2.40x"
    assert cells(by_form["resps_ablation"]) == {
        ("standard PPO, features", "over the default tree"): {"mean": "2.000x"},
        ("standard PPO, features", "trees used"): {"mean": "18"},
    }
    three = [with_tree("ltd", name, 1.0) for name in ("mt_bench", "gsm8k", "alpaca")]
    values = cells(tables(report(*three))["ltd"])
    assert set(values["EAGLE-3 (default tree)", "MAT"]) == {"MT-bench", "GSM8K", "Alpaca"}  # so there is no mean


def test_a_policy_is_recognised_by_the_name_of_its_training():
    rows = [
        live_row("policy ltd-size (ltd)", 1.5, None, scheduler="ltd", drafters=["general"], domain="qa"),
        live_row("policy ltd", 1.75, None, scheduler="ltd", drafters=["general"], domain="qa"),
        live_row("best static tree 8/3/4", 1.25, None, drafters=["general"], domain="qa"),
        live_row("default tree 10/3/4", 1.0, None, drafters=["general"], domain="qa"),
        live_row("default tree 60/9/10", 0.5, None, drafters=["general"], domain="qa"),
        with_policy("21/3/10", "gsm8k", 0.75),
        live_row("policy ltd", 9.0, None, scheduler="ltd", drafters=["sql"], domain="qa"),
    ]
    by_form = tables(report(*rows))
    rates = {line: row for (line, figure), row in cells(by_form["ltd"]).items() if figure == "speed-up"}
    assert rates == {
        "EAGLE-3 (default tree)": {"QA": "0.50x"},
        "EAGLE-3 (best static tree)": {"GSM8K": "0.75x", "QA": "1.25x"},
        "LTD": {"QA": "1.75x"},
        "EAGLE-3 (our tree for this device)": {"QA": "1.00x"},
    }
    assert cells(by_form["ltd_ablation"])["size policy alone", "speed-up"] == {"QA": "1.50x"}


def test_policies_of_several_seeds_are_one_row_with_their_mean_and_deviation():
    names = ["ltd", "ltd-seed1", "ltd-seed2", "ltd-size"]
    rows = [with_policy(name, "qa", speed) for name, speed in zip(names, (1.0, 1.5, 2.0, 9.0), strict=True)]
    rows += [
        with_policy(name, name_of, 2 * speed) for name, speed in (("resps", 1), ("resps-seed1", 2)) for name_of in RESPS
    ]
    rows += [with_tree("resps", name, 1.0) for name in RESPS]
    counts = [
        {"name": f"policy {name}", "mat": 2.0, "tokens_per_s": 9.0, "actions": n}
        for name, n in (("resps", 4), ("resps-seed1 (resps)", 6))
    ]
    by_form = tables(report(*rows, replayed=counts))
    assert cells(by_form["ltd"])["LTD", "speed-up"] == {"QA": "1.50x ±0.50"}
    assert cells(by_form["resps"])["Re-SpS: standard PPO", "speed-up"]["mean"] == "3.00x ±1.41"
    assert cells(by_form["resps_ablation"]) == {
        ("standard PPO, features", "over the default tree"): {"mean": "3.000x ±1.414"},
        ("standard PPO, features", "trees used"): {"mean": "5 ±1"},
    }


def test_a_policy_is_compared_with_the_default_tree_of_its_own_report():
    first = report(*(with_tree("resps", name, 9.0) for name in RESPS))
    second = report(*(with_tree("resps", name, 1.0) for name in RESPS), *(with_policy("resps", n, 1.5) for n in RESPS))
    assert cells(tables(first, second)["resps_ablation"]) == {
        ("standard PPO, features", "over the default tree"): {"mean": "1.500x"}
    }


def test_speed_over_the_best_static_tree_has_the_deviation_over_seeds_and_an_interval():
    seeds = {
        "seeds": [0, 1],
        "replayed": {"mean": 1.05, "sd": 0.01},
        "live": {"mean": 0.98, "sd": 0.02, "ci95": [0.95, 1.01]},
    }
    measured = report(seeds=seeds) | {"parents": [{"kind": "policies", "name": "ltd", "sha256": "a"}]}
    assert cells(tables(measured)["over_best"]) == {
        ("LTD", "tokens/s over the best static tree"): {
            "T = 0, replayed": "1.050x ±0.010",
            "T = 0, live": "0.980x [0.950, 1.010]",
        }
    }
    sampled = measured | {"rows": [with_policy("ltd-t1", "mixed", 1.0) | {"temperature": 1.0}]}
    sampled["parents"] = [{"kind": "policies", "name": "ltd-t1", "sha256": "a"}]
    values = cells(tables(sampled)["over_best"])["LTD", "tokens/s over the best static tree"]
    assert set(values) == {"T = 1, replayed", "T = 1, live"}


def test_sampled_answers_stand_in_the_columns_of_their_temperature():
    def measured(temperature, mat):
        rows = [replay_row("ucbspec", "ucbspec", mat, domain="all", options={}, temperature=temperature)]
        return report(
            *rows,
            mat_by_domain={"sql": {"general": mat}},
            scaling={"pool size": [{"method": "ucbspec", "at": 2, "mat": mat}]},
        )

    by_form = tables(measured(1.0, 1.5), measured(0.0, 2.0))
    assert cells(by_form["sampled"]) == {("UCBSpec", "MAT"): {"T = 0": "2.00", "T = 1": "1.50"}}
    assert cells(by_form["hedgespec"])["EAGLE-3 (generalist)", "MAT"] == {"sql": "2.00"}
    assert cells(by_form["scaling"]) == {("UCBSpec", "MAT"): {"N = 2": "2.00"}}


def test_a_table_says_what_is_smaller_than_in_the_paper():
    table = tables(report())["ltd"]
    assert "`policy.size_decisions=20000` (the paper: 100,000)" in table.reduced
    assert table.reduced in render_papers(*paper_tables([report()]))
    assert tables(report())["hedgespec"].reduced == ""


@pytest.mark.parametrize("paper", EXPERIMENTS)
def test_what_a_step_makes_smaller_is_larger_in_the_experiment(paper):
    cfg = load_config("train_policy", TrainPolicyConfig, [f"experiment={EXPERIMENTS[paper]}"])
    for size in REDUCTIONS[paper]:
        section, key = size.key.split(".")
        value = getattr(getattr(cfg, section), key)
        assert size.value < value and f"{value:,}" in size.paper


def test_a_replayed_expert_is_the_drafter_with_the_name_of_the_domain():
    row = replay_row("sql alone", "static", 3.0, drafters=POOL, domain="sql")
    assert cells(tables(report(row))["hedgespec"])["the domain's expert", "MAT"] == {"sql": "3.00"}


def test_the_best_drafter_needs_rows_of_the_whole_pool():
    two = [alone("general", "gsm8k", 2.0), alone("sql", "gsm8k", 2.5), over("metasd_ucb", "gsm8k", 2.4)]
    assert ("best drafter alone", "MAT") not in cells(tables(report(*two))["metasd"])
    three = report(*two, mat_by_domain={"gsm8k": {"retrieval": 2.75}})
    assert cells(tables(three)["metasd"])["best drafter alone", "MAT"] == {"Math (gsm8k)": "2.75"}
    assert ("best drafter alone", "speed-up") not in cells(tables(three)["metasd"])


def test_every_drafter_has_its_row_by_domain():
    table = tables(report(over("hedgespec", "sql", 3.0), mat_by_domain={"sql": {"general": 2.0, "sql": 2.5}}))[
        "drafters"
    ]
    assert [row[0] for row in table.ours.cells] == POOL
    assert cells(table) == {("general", "MAT"): {"sql": "2.00"}, ("sql", "MAT"): {"sql": "2.50"}}
    assert table.note == "22 of 24 cells not measured (2 of the others by exact replay); type:"
    assert table.form.commands


def test_pool_scaling_is_read_from_rows_along_the_axis_and_from_the_curve():
    points = [{"method": "hedgespec over the pool", "at": 2, "mat": 2.5}, {"method": "ucbspec", "at": 4, "mat": 2.25}]
    row = over("hedgespec", "all", 2.75, axis="pool size", at=4)
    by_form = tables(report(row, over("hedgespec", "sql", 9.0, axis="context", at=4), scaling={"pool size": points}))
    assert cells(by_form["scaling"]) == {
        ("HedgeSpec (ours)", "MAT"): {"N = 2": "2.50", "N = 4": "2.75"},
        ("UCBSpec", "MAT"): {"N = 4": "2.25"},
    }
    assert cells(by_form["hedgespec"]) == {}


def test_pool_scaling_prefers_replayed_rows_to_timed_ones():
    points = [{"method": "hedgespec", "at": 2, "mat": 2.5}, {"method": "hedgespec", "at": 3, "mat": 2.75}]
    row = over("hedgespec", "all", 2.0, axis="pool size", at=2)
    table = tables(report(row, scaling={"pool size": points}))["scaling"]
    assert cells(table) == {("HedgeSpec (ours)", "MAT"): {"N = 2": "2.50", "N = 3": "2.75"}}


def test_pools_of_small_models_and_of_many_drafters_have_tables_to_themselves():
    small = ["general-causal_lm", "math-causal_lm"]
    rows = [over("metasd_ucb", "gsm8k", 3.0, drafters=small), alone("math-causal_lm", "gsm8k", 2.75)]
    rows += [alone("general-causal_lm", "gsm8k", 2.5)]
    points = [{"method": "ucbspec", "at": 32, "mat": 2.25}]
    many = report(replay_row("ucbspec", "ucbspec", 2.0, drafters=[f"d{n}" for n in range(33)], options={}))
    many["curves"]["scaling"] = {"pool size": points}
    by_form = tables(report(*rows), many, report(over("metasd_ucb", "gsm8k", 4.0)))
    mats = {line: row for (line, figure), row in cells(by_form["metasd_black_box"]).items() if figure == "MAT"}
    assert mats == {
        "one for all (generalist)": {"Math (gsm8k)": "2.50"},
        "best drafter alone": {"Math (gsm8k)": "2.75"},
        "MetaSD-UCB": {"Math (gsm8k)": "3.00"},
    }
    assert cells(by_form["metasd"])["MetaSD-UCB", "MAT"] == {"Math (gsm8k)": "4.00"}
    assert cells(by_form["many_drafters"]) == {("UCBSpec", "MAT"): {"N = 32": "2.25"}}
    timed = report(over("hedgespec", "all", 2.5, axis="pool size", at=16, drafters=[f"d{n}" for n in range(33)]))
    assert cells(tables(timed)["many_drafters"]) == {
        ("HedgeSpec (ours)", "MAT"): {"N = 16": "2.50"},
        ("HedgeSpec (ours)", "tokens/s"): {"N = 16": "36.0"},
    }
    assert cells(by_form["scaling"]) == {} and [row[0] for row in by_form["drafters"].ours.cells] == POOL


def test_tasks_of_mmlu_are_counted_once_all_are_timed():
    tasks = [f"mmlu_{number:02}" for number in range(57)]
    rows = [with_tree("ltd", task, 1.0) for task in tasks]
    rows += [with_policy("ltd", task, 1.5 if number < 50 else 0.5) for number, task in enumerate(tasks)]
    assert cells(tables(report(*rows))["ltd_mmlu"]) == {("LTD", "tasks faster than the default tree"): {"MMLU": "50"}}
    assert cells(tables(report(*rows[1:]))["ltd_mmlu"]) == {}


def test_intervals_of_re_sps_have_policies_of_their_lengths():
    rows = [with_tree("resps", name, 2.0) for name in RESPS]
    rows += [with_policy(f"resps-hold{count}", name, 2 + count / 50) for count in (1, 50) for name in RESPS]
    assert cells(tables(report(*rows))["resps_caching"]) == {
        ("Re-SpS: standard PPO", "over the default tree"): {"N = 1": "1.010x", "N = 50": "1.500x"}
    }


def test_spec_bench_sums_its_six_groups():
    groups = ["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"]
    rows = [over("ucbspec", f"spec_bench/{name}", 2.0, num_cycles=100, num_tokens=200) for name in groups]
    rows[0] |= {"mat": 4.0, "num_cycles": 500, "num_tokens": 2000, "tokens_per_s": 100.0}
    assert cells(tables(report(*rows[:5]))["banditspec"]) == {}
    values = cells(tables(report(*rows))["banditspec"])["UCBSpec", "MAT"]
    assert values == {"Spec-Bench": "3.00"}  # (500 x 4 + 500 x 2) / 1000 cycles
    rate = float(cells(tables(report(*rows))["banditspec"])["UCBSpec", "tokens/s"]["Spec-Bench"])
    assert rate == pytest.approx(3000 / (2000 / 100 + 5 * 200 / 36), abs=0.06)


def test_mat_of_selectors_comes_from_replay_and_mat_of_policies_from_timing():
    rows = [alone("general", "gsm8k", 2.0), replay_row("general alone", "static", 3.0, drafters=POOL, domain="gsm8k")]
    by_form = tables(report(*rows))
    assert cells(by_form["metasd"])["one for all (generalist)", "MAT"] == {"Math (gsm8k)": "3.00"}
    assert cells(by_form["resps"])["EAGLE-3 (our tree for this device)", "MAT"] == {"GSM8K": "2.00"}


def test_the_first_report_that_holds_a_cell_fills_it():
    first, second = (
        report(alone("general", "qa", 2.0)),
        report(alone("general", "qa", 2.5), alone("general", "alpaca", 3.0)),
    )
    assert cells(tables(first, second)["ltd"])["EAGLE-3 (our tree for this device)", "MAT"] == {
        "QA": "2.00",
        "Alpaca": "3.00",
    }
    assert cells(tables(second, first)["ltd"])["EAGLE-3 (our tree for this device)", "MAT"] == {
        "QA": "2.50",
        "Alpaca": "3.00",
    }


def test_batches_and_tuned_selectors_are_left_out_and_counted():
    rows = [alone("general", "qa", batch_size=4), alone("general", "qa", 3.0), replay_row("ucb1", "ucb1", 2.0)]
    evidence, forms = paper_tables([report(*rows)])
    assert (evidence.left_out, evidence.tuned) == (1, 1)
    text = render_papers(evidence, forms)
    assert "Left out: 1 rows that were decoded in batches" in text
    assert "Left out: 1 rows of selectors with constants tuned here" in text
    assert [row.figures["mat"] for row in evidence.rows] == [3.0]


def test_sampled_rows_stand_in_the_table_of_their_temperature():
    by_form = tables(report(with_policy("ltd", "qa", 2.5) | {"temperature": 1.0}, with_policy("ltd", "qa", 3.0)))
    assert cells(by_form["ltd_sampled"])["LTD", "speed-up"] == {"QA": "2.50x"}
    assert cells(by_form["ltd"])["LTD", "speed-up"] == {"QA": "3.00x"}


def test_a_router_has_its_accuracy_by_wording_and_its_stream_a_column():
    router = {"rows": [{"prompts": "as written", "accuracy": 0.975}, {"prompts": "role", "accuracy": 0.5}]}
    stream = report(replay_row("router", "router", 2.5), alone("general", "mixed", 2.0)) | {"suite": "ood"}
    by_form = tables(stream, router | {"target": {"name": "tiny"}})
    assert cells(by_form["router"])["offline router", "% sent to the right drafter"] == {
        "as written": "98",
        "role": "50",
    }
    assert cells(by_form["ood"])["offline router", "MAT"] == {"rephrased": "2.50"}
    assert cells(by_form["ood"])["EAGLE-3 (generalist)", "MAT"] == {"rephrased": "2.00"}


def test_steps_of_a_cycle_are_in_milliseconds_and_shares_of_the_overhead():
    rows = [alone("general", "mixed"), with_policy("resps", "mt_bench", 1.5)]
    by_form = tables(report(*rows))
    line = cells(by_form["hedgespec_cost"])["generalist alone", "ms a cycle, target"]
    assert line == {"all domains": "15.00"}  # 6 s of 400 cycles
    values = cells(by_form["resps_overhead"])
    assert values["Re-SpS: standard PPO", "% of the overhead, drafting"] == {"MT-bench": "76.9"}  # 2 s of 2.6 s


def test_signals_stand_by_task_and_reward():
    signals = [
        {"domain": domain, "reward": reward, "signal": value}
        for domain, reward, value in (("gsm8k", "divergence", 0.5), ("gsm8k", "efficiency", 0.25), ("x", "coverage", 1))
    ]
    table = tables(report(alone("general", "gsm8k"), signal_strength=signals))["metasd_signal"]
    assert cells(table) == {
        ("BD: 1 - TV", "signal strength R"): {"Math (gsm8k)": "0.500"},
        ("BE: block efficiency", "signal strength R"): {"Math (gsm8k)": "0.250"},
    }


def test_trees_priced_by_a_device_stand_in_its_column():
    rows = [("default tree 60/9/10", 30.0), ("best static tree 61/4/10", 32.0), ("policy ltd-h100 (ltd)", 40.0)]
    rows += [("policy ltd-h100-seed1 (ltd)", 44.0), ("best static tree of these answers in hindsight 41/4/10", 34.0)]
    rows += [("perfect foresight, held for 2 cycles", 50.0), ("perfect foresight", 60.0)]
    replayed = [{"name": name, "mat": 2.0, "tokens_per_s": rate, "actions": 1} for name, rate in rows]
    replayed.append({"name": "no drafting", "mat": None, "tokens_per_s": 20.0, "actions": None})
    curves = {"replayed": replayed, "profile": "an H100", "priced_by": "h100", "grid": {"name": "ltd-paper"}}
    table = tables(report(**curves))["priced"]
    assert cells(table) == {
        (line, "replayed tokens/s over no drafting"): {"an H100": value}
        for line, value in (
            ("EAGLE-3 (LTD's default tree)", "1.50x"),
            ("best static tree of LTD", "1.60x"),
            ("LTD", "2.10x ±0.14"),
            ("perfect foresight with LTD's trees", "3.00x"),
        )
    }


@pytest.mark.parametrize("key", ["target", "device", "dtype"])
def test_reports_of_several_targets_or_timed_on_several_devices_are_refused(key):
    timed = report(alone("general", "qa"))
    second = timed | {key: {"name": "big"} if key == "target" else "other"}
    with pytest.raises(ArtifactError, match=r"^the reports are of .* and of .*; give reports of one target and dtype"):
        gather([timed, second])


def test_a_replay_may_be_from_another_device():
    replayed = report(replay_row("general alone", "static", 3.0, drafters=POOL)) | {"device": "a second cpu"}
    assert gather([replayed, report(alone("general", "qa"))]).about == "tiny, cpu, float32"


def test_an_empty_report_gives_empty_tables_that_say_what_to_type():
    evidence, forms = paper_tables([{"rows": []}])
    assert all(cells(table) == {} and table.missing == table.cells > 0 for table in forms)
    text = render_papers(evidence, forms)
    assert "20 of 20 cells not measured; type:" in text
    assert "drafterforge eval suite=domains name=papers-domains " in text


# --- reasons, age and verdicts -------------------------------------------------------------------


def test_a_reason_marks_the_cells_that_it_explains_and_the_others_are_unexplained():
    reasons = {"ltd": [Reason("not measured: no clock", figure="speedup"), Reason("does not apply: no", method="LTD")]}
    evidence, forms = paper_tables([report(with_tree("ltd", "qa", 1.5))], reasons=reasons)
    table = next(table for table in forms if table.form.key == "ltd")
    assert table.reasons == ["not measured: no clock", "does not apply: no"]
    assert table.ours.cells[0] == ["EAGLE-3 (default tree)", "speed-up", "(a)", "(a)", "(a)", "1.50x", ""]
    assert ["LTD", "MAT", "(b)", "(b)", "(b)", "(b)", ""] in table.ours.cells
    assert {(cell.method, cell.figure) for cell in table.unexplained} == {
        ("EAGLE-3 (default tree)", "mat"),
        ("EAGLE-3 (best static tree)", "mat"),
        ("EAGLE-3 (our tree for this device)", "mat"),
    }
    assert table.missing == 32 - 2 - 4  # cells that do not apply are not missing
    assert "- (a) not measured: no clock" in render_papers(evidence, forms)


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


def test_a_report_that_does_not_say_its_code_is_old():
    evidence, forms = paper_tables([report(replay_row("general alone", "static", 2.0, domain="qa"))])
    code = {"drafters": "1", "replay": "1", "tree": "1"}
    assert old_rows(evidence, forms, ["r"], code, {}) == ["r: general alone on qa is older than drafters, replay, tree"]


@pytest.mark.parametrize(
    ("values", "references", "verdict"),
    [
        ({"a": 2.0, "b": 3.0}, {"a": 1.0, "b": 2.5}, ("2.50 against 1.75, in 2 of 2 columns", "holds")),
        ({"a": 2.0, "b": 2.0}, {"a": 1.0, "b": 2.5}, ("2.00 against 1.75, in 1 of 2 columns", "depends")),
        ({"a": 2.0, "b": 9.0}, {"a": 3.0}, ("2.00 against 3.00", "does not hold")),
        ({}, {"a": 3.0}, ("", "not measured")),
    ],
)
def test_a_claim_is_judged_by_the_columns_that_both_methods_have(values, references, verdict):
    assert judge(Claim("ltd", "x", "ltd", "mat", "m", "o"), values, references) == verdict


def test_a_claim_about_one_method_compares_its_last_column_with_its_first():
    claim = Claim("hedgespec", "x", "scaling", "mat", "m", "m", least=None, most=1.0)
    assert judge(claim, {"N = 1": 2.0, "N = 2": 9.0, "N = 3": 1.5}, {}) == ("1.50 against 2.00", "holds")


def test_claims_name_methods_and_figures_of_their_tables():
    by_key = {form.key: form for form in FORMS}
    for claim in CLAIMS:
        form = by_key[claim.form]
        assert {claim.method, claim.over} <= {line.name for line in form.lines} and claim.figure in form.figures
        assert claim.paper in published().papers


def test_a_complete_table_suggests_no_command():
    names = ("mt_bench", "gsm8k", "alpaca", "qa")
    schedules = ("static", EAGLE_TREES["ltd"], "21/3/10", "ltd")
    rows = [with_policy(schedule, name, 2.0) for name in names for schedule in schedules]
    table = tables(report(*rows))["ltd"]
    assert (table.missing, table.note) == (0, "All 32 cells measured, 0 of them by exact replay.")


# --- Markdown and the script ---------------------------------------------------------------------


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
