"""Figures of policies stand in the right cells of the papers' tables."""

from __future__ import annotations

from tests.reporting.builders import live_row
from tests.reporting.paper_builders import RESPS, cells, report, tables, with_policy, with_tree


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


def test_each_paper_has_the_best_static_tree_of_its_own_grid():
    first = report(with_policy("resps", "gsm8k", 1.0), with_policy("32/4/8", "gsm8k", 0.75))
    second = report(with_policy("ltd", "gsm8k", 1.5), with_policy("21/6/10", "gsm8k", 1.25))
    by_form = tables(first, second)
    best = "EAGLE-3 (best static tree)", "speed-up"
    assert cells(by_form["resps"])[best] == {"GSM8K": "0.75x"}
    assert cells(by_form["ltd"])[best] == {"GSM8K": "1.25x"}


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


def test_sampled_rows_stand_in_the_table_of_their_temperature():
    by_form = tables(report(with_policy("ltd", "qa", 2.5) | {"temperature": 1.0}, with_policy("ltd", "qa", 3.0)))
    assert cells(by_form["ltd_sampled"])["LTD", "speed-up"] == {"QA": "2.50x"}
    assert cells(by_form["ltd"])["LTD", "speed-up"] == {"QA": "3.00x"}


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
