"""The verdict on a trained drafter is one sentence that compares it with the best other drafter."""

from __future__ import annotations

import pytest

from drafterforge.reporting.drafter_verdict import drafter_verdict, recommended_drafter
from tests.reporting.builders import full_report, live_row


def report_of(mine: list[float], general: list[float]) -> dict:
    """A report on prompts of 60 tokens, with the number of cycles of each under two drafters."""
    rows = [live_row("autoregressive", 1.0, None, mat=1.0)]
    curves = {"per_request": {"autoregressive": [[60, 60, 1.0]] * len(mine)}}
    for name, cycles in (("mine alone", mine), ("general alone", general)):
        rows.append(live_row(name, 1.5, [1.0, 2.0], mat=60 * len(cycles) / sum(cycles)))
        curves["per_request"][name] = [[60, count, 1.0] for count in cycles]
    return full_report(rows=rows, curves=curves)


def test_a_better_drafter_is_recommended_with_its_interval():
    sentence = drafter_verdict(report_of([20, 24, 20, 24, 20, 24], [30] * 6), "mine")
    assert sentence.startswith(
        "`mine` drafts better than `general`: 2.73 tokens per cycle against 2.00, 1.36x (95 % interval "
    )
    assert sentence.endswith("6 prompts); the fastest row is drafter=mine")


def test_a_worse_drafter_is_not_recommended():
    sentence = drafter_verdict(report_of([40] * 6, [30] * 6), "mine")
    assert sentence.startswith("`mine` drafts worse than `general`: 1.50") and sentence.endswith(
        "; keep `general`; the fastest row without `mine` is drafter=general"
    )


def test_a_drafter_that_drafts_as_the_other_one_says_so():
    sentence = drafter_verdict(report_of([30, 20, 30, 25], [30, 20, 30, 25]), "mine")
    assert sentence == (
        "`mine` drafts exactly as `general` on all 4 prompts, 2.29 tokens per cycle: "
        "keep `general`, test more prompts, or train on more prompts or for more steps"
    )


def test_an_insignificant_gain_is_called_not_shown():
    sentence = drafter_verdict(report_of([20, 45, 20, 45], [30] * 4), "mine")
    assert sentence.startswith("`mine` is not shown to draft better than `general`: ")
    assert sentence.endswith(
        "; keep `general`; the fastest row without `mine` is drafter=general; test more prompts to be sure"
    )
    assert "95 % interval" in sentence


@pytest.mark.parametrize(("cycles", "count"), [([20, 21, 20], "3 prompts are"), ([25], "1 prompt is")])
def test_few_prompts_give_figures_but_no_verdict(cycles, count):
    sentence = drafter_verdict(report_of(cycles, [30] * len(cycles)), "mine")
    assert f"x, but {count} too few for a verdict; test more prompts" in sentence and "interval" not in sentence


def test_the_fastest_row_is_recommended():
    report = report_of([20, 24, 20, 24, 20, 24], [30] * 6)
    report["rows"].append(live_row("general+store", 3.0, [2.0, 4.0], mat=2.0))
    assert drafter_verdict(report, "mine").endswith("the fastest row is drafter=general+store")
    report["rows"][0]["tokens_per_s"] = 1e6
    assert drafter_verdict(report, "mine").endswith("the fastest row is plain decoding: drafter=")


def test_the_gain_of_a_datastore_is_not_credited_to_the_trained_drafter():
    report = report_of([20, 45, 20, 45], [30] * 4)
    report["rows"].append(live_row("mine+store", 4.0, [3.0, 5.0], mat=2.5))
    report["rows"].append(live_row("general+store", 3.0, [2.0, 4.0], mat=2.4))
    assert "; keep `general`; the fastest row without `mine` is drafter=general+store; " in drafter_verdict(
        report, "mine"
    )
    assert recommended_drafter(report, "mine") == "general+store"


def test_the_verdict_has_the_figures_of_the_table():
    report = report_of([20] * 6, [30] * 6)
    report["rows"][1]["mat"], report["rows"][2]["mat"] = 2.9, 1.9
    assert "2.90 tokens per cycle against 1.90, 1.53x" in drafter_verdict(report, "mine")


def test_a_drafter_is_compared_with_the_best_of_several_others():
    report = report_of([20] * 4, [30] * 4)
    report["rows"].append(live_row("parent alone", 2.0, [1.0, 3.0], mat=4.0))
    report["curves"]["per_request"]["parent alone"] = [[60, 15, 1.0]] * 4
    assert drafter_verdict(report, "mine").startswith("`mine` drafts worse than `parent`: 3.00")


def test_without_another_drafter_there_is_no_verdict():
    report = report_of([20] * 4, [30] * 4)
    report["rows"] = report["rows"][:2]
    assert drafter_verdict(report, "mine") == ""
    assert drafter_verdict(full_report(rows=[], curves={}), "mine") == ""


def test_an_answer_of_one_token_is_left_out_of_both():
    report = report_of([20, 24, 20, 24, 20, 24], [30] * 6)
    sentence = drafter_verdict(report, "mine")
    for entries in report["curves"]["per_request"].values():
        entries.append([1, 0, 0.1])
    assert drafter_verdict(report, "mine") == sentence and "`mine` drafts better than `general`" in sentence
