"""Figures of selectors and drafters stand in the right cells of the papers' tables."""

from __future__ import annotations

import pytest

from drafterforge.errors import ArtifactError
from drafterforge.reporting.papers.cells import Reason
from drafterforge.reporting.papers.evidence import gather
from drafterforge.reporting.papers.page import render_papers, verdict_table
from drafterforge.reporting.papers.policy_steps import EAGLE_TREES
from drafterforge.reporting.papers.tables import paper_tables
from tests.reporting.builders import live_row, replay_row
from tests.reporting.paper_builders import POOL, alone, cells, over, report, tables, with_policy, with_tree


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


def test_an_expert_is_read_from_the_prompts_of_the_generalist_beside_it():
    replayed = report(replay_row("general alone", "static", 2.5, domain="sql", drafters=["general"]))
    timed = report(
        alone("general", "sql", 2.0, 1.25),
        live_row("the domain's expert", 1.5, None, domain="sql", mat=2.75, drafters=["general", "sql"]),
    )
    by_method = cells(tables(replayed, timed)["hedgespec"])
    assert by_method["EAGLE-3 (generalist)", "MAT"] == {"sql": "2.50"}
    assert ("the domain's expert", "MAT") not in by_method
    assert by_method["the domain's expert", "tokens/s"] == {"sql": "30.0"}


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
    assert "Rows left out because they were decoded in batches: 1." in text
    assert "not the papers': 1." in text
    assert [row.figures["mat"] for row in evidence.rows] == [3.0]


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
        ("BD: 1 - TV", "signal strength R"): {"Math (gsm8k)": "0.5000"},
        ("BE: block efficiency", "signal strength R"): {"Math (gsm8k)": "0.2500"},
    }


@pytest.mark.parametrize("key", ["target", "dtype"])
def test_reports_of_several_targets_or_dtypes_are_refused(key):
    timed = report(alone("general", "qa"))
    second = timed | {key: {"name": "big"} if key == "target" else "other"}
    with pytest.raises(ArtifactError, match=r"^the reports are of .* and of .*; give reports of one target and dtype"):
        gather([timed, second])


def test_a_table_names_its_device_and_no_claim_compares_seconds_of_two():
    first = [report(alone("general", domain, 2.0, 1.5)) for domain in ("gsm8k", "alpaca")]
    second = report(over("metasd_ucb", "gsm8k", 3.0)) | {"device": "a second cpu"}
    third = report(alone("general", "humaneval", 2.0, 1.5), over("metasd_ucb", "humaneval", 3.0))
    fourth = report(with_tree("ltd", "alpaca", 0.5)) | {"device": "a second cpu"}
    evidence, forms = paper_tables([*first, second, third, fourth])
    by_form = {table.form.key: table for table in forms}
    assert evidence.about == "tiny, cpu, float32" and by_form["hedgespec"].seconds == ""
    assert by_form["metasd"].seconds == (
        "Methods were timed on several devices; compare only those of one. "
        "one for all (generalist), MetaSD-UCB (`Code`): cpu; MetaSD-UCB (`Math`): a second cpu."
    )
    verdicts = {text: measured for _, text, measured, *_ in verdict_table(forms).cells}
    assert verdicts["MetaSD-UCB is faster than the drafter for all tasks"] == "1.80x against 1.50x"  # of one column
    assert "in 2 of 2 columns" in verdicts["MetaSD-UCB beats the drafter for all tasks"]
    assert "a second cpu" in render_papers(evidence, forms)


def test_a_replay_may_be_from_another_device():
    replayed = report(replay_row("general alone", "static", 3.0, drafters=POOL)) | {"device": "a second cpu"}
    assert gather([replayed, report(alone("general", "qa"))]).about == "tiny, cpu, float32"


def test_an_empty_report_gives_empty_tables_that_say_what_to_type():
    evidence, forms = paper_tables([{"rows": []}])
    assert all(cells(table) == {} and table.missing == table.cells > 0 for table in forms)
    text = render_papers(evidence, forms)
    assert "20 of 20 cells not measured; type:" in text
    assert "drafterforge eval suite=domains name=papers-domains " in text


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


def test_a_complete_table_suggests_no_command():
    names = ("mt_bench", "gsm8k", "alpaca", "qa")
    schedules = ("static", EAGLE_TREES["ltd"], "21/3/10", "ltd")
    rows = [with_policy(schedule, name, 2.0) for name in names for schedule in schedules]
    table = tables(report(*rows))["ltd"]
    assert (table.missing, table.note) == (0, "All 32 cells measured, 0 of them by exact replay.")
