"""Comparing two reports finds slower, lossy and less accepting rows; equal reports and noise pass."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from drafterforge.cli import main
from drafterforge.errors import ArtifactError
from drafterforge.reporting.compare import RULE, compare_reports, print_comparison
from tests.reporting.builders import full_report, live_row


def report_with(index: int, **values) -> dict:
    """A report with one row changed."""
    report = full_report()
    report["rows"][index] |= values
    return report


def faults(after: dict) -> list[str]:
    return compare_reports(full_report(), after).faults


def test_equal_reports_have_no_fault():
    comparison = compare_reports(full_report(), full_report())
    assert (comparison.faults, comparison.only_before, comparison.only_after, comparison.notes) == ([], [], [], [])
    assert {pair.figure for pair in comparison.pairs} == {"mismatches", "MAT", "speed-up", "tokens/s"}
    assert all(pair.before == pair.after for pair in comparison.pairs)


def test_a_speed_up_below_the_earlier_interval_is_a_fault_and_noise_is_not():
    assert faults(report_with(2, speedup=1.4, speedup_ci95=[1.3, 1.5])) == [
        "hedgespec over the pool: speed-up 1.30-1.50 lies below 1.60-2.00"
    ]
    assert faults(report_with(2, speedup=1.7, speedup_ci95=[1.5, 1.9])) == []
    assert faults(report_with(2, speedup=2.4, speedup_ci95=[2.2, 2.6])) == []
    slower = {"speedup": 1.4, "speedup_ci95": [1.3, 1.5]}
    assert faults(report_with(2, **slower) | {"suite": "other"}) == []  # measured on other requests
    assert faults(report_with(2, **slower, num_prompts=1)) == []  # one request has no interval


def test_mismatches_that_appear_are_a_fault():
    assert faults(report_with(1, mismatches=1)) == ["sql alone: 1 mismatches, 0 before"]
    before = report_with(1, mismatches=1)
    assert compare_reports(before, before).faults == []  # lossy before and after
    assert faults(report_with(1, mismatches=1, dtype="bfloat16")) == []
    after = full_report()
    after["rows"].append(live_row("new", 1.0, [0.9, 1.1], mismatches=2))
    assert faults(after) == ["new: mismatches in a new row"]
    after = full_report()
    after["curves"]["live"][0]["other_text"] = [{"margin": 0.5, "rerun": False}]
    assert faults(after) == ["sql: 1 live answers in batches differ"]


def test_a_lower_mat_on_the_same_requests_is_a_fault():
    assert faults(report_with(5, mat=2.5)) == [
        "hedgespec (replayed): MAT 2.500 is lower than 2.600 on the same requests"
    ]
    assert faults(report_with(5, mat=2.59)) == [] == faults(report_with(5, mat=2.7))
    assert faults(report_with(5, mat=2.5, num_tokens=900)) == []  # other answers
    after = report_with(5, mat=2.5) | {"seed": 1}
    comparison = compare_reports(full_report(), after)
    assert comparison.faults == [] and comparison.notes == ["different seed: MAT and speed are shown, not judged"]


def test_a_drafter_that_is_worse_on_one_domain_is_found():
    after = full_report()
    after["curves"]["mat_by_domain"]["math"]["math"] = 2.2
    assert faults(after) == ["math on math: MAT 2.200 is lower than 2.400 on the same requests"]


def test_paired_requests_find_a_loss_within_the_tolerance():
    name, after = "hedgespec over the pool", full_report()
    after["curves"]["per_request"][name] = [[n, c + 1, s] for n, c, s in after["curves"]["per_request"][name]]
    after["rows"][2] |= {"num_cycles": 408, "mat": 2.59}
    assert faults(after) == [f"{name}: MAT 2.590 is lower than 2.600 on the same requests"]
    after = full_report()
    after["curves"]["per_request"][name] = [[n, c, 1.2 * s] for n, c, s in after["curves"]["per_request"][name]]
    after["rows"][2]["tokens_per_s"] /= 1.2
    assert faults(after) == [f"{name}: 30.0 tokens/s, 36.0 before (paired p 0.0039)"]
    assert faults(after | {"device": "another"}) == []


PROMPTS = {"questions": "a1", "domains": ["sql"], "num_prompts": 8, "timed_prompts": 8, "max_new_tokens": 128}


def with_prompts(report: dict, **changes: object) -> dict:
    report["curves"]["prompts"] = PROMPTS | changes
    return report


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"questions": "b2"}, "questions"),
        ({"num_prompts": 3}, "suite.num_prompts"),
        ({"max_new_tokens": 8}, "suite.max"),
    ],
)
def test_reports_of_other_prompts_are_shown_and_not_judged(changes, difference):
    slower = report_with(2, speedup=1.4, speedup_ci95=[1.3, 1.5], mat=2.0)
    slower["curves"]["per_request"] = {
        name: [[n, c, 1.2 * s] for n, c, s in entries] for name, entries in slower["curves"]["per_request"].items()
    }
    slower["rows"][2]["tokens_per_s"] /= 1.2
    before = with_prompts(full_report())
    assert len(compare_reports(before, with_prompts(slower)).faults) == 3  # MAT, speed-up and tokens/s
    comparison = compare_reports(before, with_prompts(slower, **changes))
    assert comparison.faults == [] and comparison.notes[0].startswith(f"different {difference}")
    assert comparison.unjudged.startswith(f"different {difference}")
    assert compare_reports(before, with_prompts(full_report())).unjudged == ""


def test_reports_that_do_not_name_their_prompts_need_equal_numbers_of_answers_and_tokens():
    slower = report_with(2, speedup=1.4, speedup_ci95=[1.3, 1.5])
    assert len(faults(slower)) == 1
    for row in slower["rows"]:
        row["num_tokens"] = 700
    comparison = compare_reports(full_report(), slower)
    assert comparison.faults == [] and "no row has the same number" in comparison.unjudged


def test_an_answer_of_one_token_does_not_end_the_paired_test():
    name, before, after = "hedgespec over the pool", full_report(), full_report()
    for report, more in ((before, 0), (after, 1)):
        entries = report["curves"]["per_request"][name]
        report["curves"]["per_request"][name] = [[n, c + more, s] for n, c, s in entries] + [[1, 0, 0.1]]
        report["rows"][2] |= {
            "num_prompts": 9,
            "num_tokens": 801,
            "num_cycles": 400 + 8 * more,
            "mat": 2.6 - 0.01 * more,
        }
    assert compare_reports(before, after).faults == [f"{name}: MAT 2.590 is lower than 2.600 on the same requests"]


def test_rows_of_several_batch_sizes_and_temperatures_have_names_of_their_own():
    axis = {"axis": "batch size", "at": 8.0, "batch_size": 8}
    rows = [live_row("sql alone", 1.3, [1.2, 1.4], temperature=t, **axis) for t in (0.0, 0.7)]
    comparison = compare_reports(full_report(rows=rows), full_report(rows=rows))
    assert {pair.row for pair in comparison.pairs if pair.figure == "speed-up"} == {
        "sql alone (batch size 8)", "sql alone (batch size 8, temperature 0.7)",
    }  # fmt: skip


def test_speed_on_another_device_is_not_judged():
    after = report_with(2, speedup=1.4, speedup_ci95=[1.3, 1.5]) | {"device": "cuda"}
    comparison = compare_reports(full_report(), after)
    assert comparison.faults == [] and "different devices" in comparison.notes[0]


def test_rows_of_other_places_on_an_axis_are_not_compared():
    rows = [live_row("sql alone", speed, [speed - 0.1, speed + 0.1]) for speed in (1.3, 1.8)]
    before, after = (
        full_report(rows=[row | {"axis": "context length", "at": at}, rows[1]])
        for row, at in ((rows[1], 256), (rows[0], 512))
    )
    comparison = compare_reports(before, after)
    assert comparison.faults == [] and comparison.only_before == ["sql alone (context length 256)"]


def test_rows_of_only_one_report_are_named():
    after = full_report()
    after["rows"][1]["method"] = "math alone"
    comparison = compare_reports(full_report(), after)
    assert (comparison.only_before, comparison.only_after) == (["sql alone"], ["math alone"])


def test_reports_with_nothing_in_common_are_a_mistake():
    with pytest.raises(ArtifactError, match="no row in common"):
        compare_reports(full_report(rows=[], curves={}), full_report())


def test_the_printed_comparison_names_the_rule(capsys):
    after = report_with(1, mismatches=1)
    after["rows"][1]["method"] = before = "[red]sql[/red]"
    earlier = full_report()
    earlier["rows"][1]["method"] = before
    print_comparison(compare_reports(earlier, after), ("a", "b"), Console(width=300))
    out = capsys.readouterr().out
    assert RULE in " ".join(out.split()) and "[red]sql[/red]" in out and out.count("regression │") == 1


@pytest.fixture
def saved(tmp_path):
    """Writes reports; returns `A,B`."""

    def save(before: dict, after: dict) -> str:
        for name, report in (("a", before), ("b", after)):
            (tmp_path / f"{name}.json").write_text(json.dumps(report))
        return f"compare={tmp_path / 'a.json'},{tmp_path / 'b.json'}"

    return save


def test_eval_compare_exits_with_1_on_a_regression(saved, capsys):
    assert main(["eval", saved(full_report(), full_report())]) == 0
    assert "no significant regression" in capsys.readouterr().out
    assert main(["eval", saved(with_prompts(full_report()), with_prompts(full_report(), questions="b2"))]) == 0
    out = capsys.readouterr().out
    assert "nothing could be judged: different questions\n" in out and "no significant regression" not in out
    assert main(["eval", saved(full_report(), report_with(2, speedup=1.4, speedup_ci95=[1.3, 1.5]))]) == 1
    done = capsys.readouterr()
    assert done.err.startswith("drafterforge: ") and "lies below" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("typed", ["compare=a", "compare=a,b,c", "compare=a,", "compare=nowhere,there"])
def test_reports_that_cannot_be_compared_exit_with_2(typed, capsys, tmp_path):
    assert main(["eval", typed, f"runs_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("drafterforge: ")
