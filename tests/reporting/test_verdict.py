"""The verdict is a command with a significant gain, or says that no method differs; noise is named."""

from __future__ import annotations

import json

from rich.console import Console

from drafterforge.reporting.console import print_report, print_table, print_verdict
from drafterforge.reporting.markdown import render_markdown
from drafterforge.reporting.noise import noise_of
from drafterforge.reporting.tables import tables_of
from drafterforge.reporting.verdict import byline_of, heading_of, lossless_faults, summarize
from tests.reporting.builders import full_report, live_row

PLAIN = live_row("autoregressive", 1.0, None)
COMMANDS = {"sql": "drafterforge generate drafter=sql", "pool": "drafterforge generate drafter=pool"}


def seconds(*rates: float) -> list[list[float]]:
    """One request per rate, with 100 tokens in 50 cycles."""
    return [[100, 50, 100 / rate] for rate in rates]


def report_of(sql: list[float], pool: list[float], **curves: object) -> dict:
    """A report on eight requests, with the tokens/s of each under two methods."""
    rows = [
        PLAIN,
        live_row("sql", 1.9, [1.7, 2.1], drafters=["sql"]),
        live_row("pool", 2.0, [1.8, 2.2], drafters=["sql", "math"]),
    ]
    requests = {"sql": seconds(*sql), "pool": seconds(*pool)}
    return full_report(rows=rows, curves={"per_request": requests, "commands": COMMANDS, **curves}, suite="quick")


def verdict(report: dict) -> str:
    return summarize(report).sentences[0]


def test_a_significant_difference_gives_a_command():
    sentence = verdict(report_of([20.0] * 8, [30.0 + step for step in range(8)]))
    assert sentence.startswith("Type `drafterforge generate drafter=pool` for “pool”: 2.00x, 95 % interval 1.80-2.20")
    assert "significantly faster than all other methods" in sentence


def test_without_a_significant_difference_the_simplest_is_named():
    sentence = verdict(report_of([20, 31, 20, 31, 20, 31, 20, 31], [21, 30, 21, 30, 21, 30, 21, 30]))
    assert sentence.startswith("Type `drafterforge generate drafter=sql` for “sql”, the simplest: 1.90x")
    assert "“pool” measured 2.00x" in sentence
    assert "does not differ significantly from “sql” (smallest paired p = 0.28; more prompts tell more)" in sentence


def test_without_a_significant_difference_the_default_is_preferred():
    text = json.dumps(report_of([20, 31, 20, 31, 20, 31, 20, 31], [21, 30, 21, 30, 21, 30, 21, 30]))
    sentence = verdict(json.loads(text.replace('"pool"', '"auto"')))
    assert "drafter=pool` for “auto”; “auto” measured 2.00x" in sentence and "simplest" not in sentence
    sentence = verdict(json.loads(text.replace('"sql"', '"auto"')))
    assert "“auto”, the default: 1.90x" in sentence and "“pool” measured 2.00x" in sentence


def test_without_the_requests_the_intervals_decide():
    report = report_of([], [])
    assert "does not differ significantly from “sql” (their intervals overlap; more" in verdict(report)
    report["rows"][1] |= {"speedup": 1.5, "speedup_ci95": [1.4, 1.6]}
    assert "significantly faster than all other methods" in verdict(report)


def test_a_method_without_a_command_is_named():
    report = report_of([20.0] * 8, [30.0 + step for step in range(8)], commands={})
    assert verdict(report).startswith("Run “pool”: 2.00x")


def test_a_quiet_report_with_narrow_intervals_has_no_noise():
    machine = {"cores": 2, "threads": 2, "sessions": [{"began": "2026", "requests": 8, "other_cores": 0.2}]}
    assert noise_of(report_of([20.0] * 8, [30.0] * 8, machine=machine, again="drafterforge eval")) == []


def test_wide_intervals_and_load_are_flagged_with_the_command_that_times_again():
    sessions = [{"requests": 4, "other_cores": 0.1}, {"requests": 4, "other_cores": 3.2}]
    machine = {"cores": 2, "threads": 2, "sessions": sessions}
    commands = {"again": "drafterforge eval", "recalibrate": "drafterforge calibrate"}
    report = report_of([20.0] * 8, [30.0] * 8, machine=machine, profile_error=0.696, **commands)
    report["rows"][1]["speedup_ci95"] = [0.49, 1.48]
    wide, busy, mixed, again, profile, recalibrate = noise_of(report)
    assert wide == "Wide intervals (over 40% of the speed-up): sql."
    assert "other programs used up to 3.2 of 2 cores" in busy and "resumed" in mixed and "0.1, 3.2 cores" in mixed
    assert "held-out answers is 70%" in profile and again == "To time again on a quiet machine, type: drafterforge eval"
    assert recalibrate == "To calibrate again on a quiet machine, type: drafterforge calibrate"
    assert noise_of(full_report(curves={"profile_error": 0.696, "again": "drafterforge eval"})) == [profile]
    timed = tables_of(report)[0]
    assert next(row for row in timed.cells if row[0] == "sql")[2] == "0.49-1.48 (wide)" and "Wide:" in timed.note


def test_many_free_cores_make_a_busy_machine_no_noise():
    machine = {"cores": 64, "threads": 2, "sessions": [{"requests": 8, "other_cores": 10.0}]}
    assert noise_of(report_of([20.0] * 8, [30.0] * 8, machine=machine)) == []


def test_the_title_names_the_target_and_the_next_line_device_and_date():
    report = report_of([20.0] * 8, [30.0] * 8)
    assert heading_of(report) == f"Quick evaluation of {report['target']['name']}"
    assert byline_of(report) == f"{report['device']} · {report['dtype']} · fast numerics · {report['created']}"
    assert heading_of({"suite": "sql, held out"}) == "Sql, held out"


def test_a_sampled_report_names_its_temperature(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    report = report_of([20.0] * 8, [30.0] * 8)
    for row in report["rows"]:
        row |= {"temperature": 0.7, "wilcoxon_p_holm": 0.01, "peak_mb": None}
    assert "fast numerics · temperature 0.7 ·" in byline_of(report) and "temperature: 0.7" in render_markdown(report)
    print_report(report, "hedgespec")
    assert "methods in turns, temperature 0.7" in capsys.readouterr().out
    report["rows"] = [row | {"axis": "temperature", "at": 0.7} for row in report["rows"]]
    assert "temperature" not in byline_of(report)  # each row says it


def test_the_terminal_shows_verdict_and_noise(capsys):
    report = report_of([20.0] * 8, [30.0 + step for step in range(8)])
    report["rows"][1]["speedup_ci95"] = [0.49, 1.48]
    print_verdict(report)
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("Lossless: 0 mismatches; ") and last.startswith("noisy: Wide")
    assert second.startswith("Type `drafterforge generate drafter=pool`")


def test_too_few_prompts_have_no_interval_in_a_table(capsys):
    for few in ({"num_prompts": 3}, {"num_prompts": 24, "batch_size": 8}):  # of older reports
        report = report_of([20.0] * 8, [30.0] * 8)
        report["rows"][1] |= {"speedup": 1.69, "speedup_ci95": [1.6, 1.75], **few}
        print_table(report, Console(width=200))
        printed = capsys.readouterr().out
        assert "1.69x" in printed and "1.60-1.75" not in printed and "1.80-2.20" in printed


def test_rows_of_several_domains_are_told_apart(capsys):
    report = report_of([20.0] * 8, [30.0] * 8)
    print_table(report, Console(width=200))
    assert "domain" not in capsys.readouterr().out
    report["rows"][1]["domain"] = "sql"
    print_table(report, Console(width=200))
    printed = capsys.readouterr().out
    assert "domain" in printed and "sql" in printed


def test_the_p_of_the_table_decides_with_the_interval():
    report = report_of([20.0] * 8, [30.0 + step for step in range(8)])
    for row in report["rows"][1:]:
        row["wilcoxon_p_holm"] = 0.6
    sentence = verdict(report)
    assert sentence.startswith(
        "Nothing is shown to beat plain decoding on 8 prompts: the fastest, “pool” measured 2.00x"
    )
    assert "p = 0.6" in sentence and "Type" not in sentence
    report["rows"][1]["wilcoxon_p_holm"] = 0.03
    assert verdict(report).startswith("Type `drafterforge generate drafter=sql` for “sql”")


def test_prompts_too_few_for_a_test_show_nothing():
    report = report_of([], [])
    for row in report["rows"][1:]:
        row |= {"wilcoxon_p": None, "num_prompts": 4}
    sentence = verdict(report)
    assert "on 4 prompts: " in sentence and "(2 methods need at least 7 prompts for a verdict)" in sentence


def test_another_program_is_not_recommended_as_the_simplest():
    report = report_of([20, 31, 20, 31, 20, 31, 20, 31], [21, 30, 21, 30, 21, 30, 21, 30])
    lookup = live_row("HF prompt lookup (10)", 1.95, [1.7, 2.2], drafters=[], external=True)
    report["rows"].append(lookup)
    report["curves"]["per_request"]["HF prompt lookup (10)"] = seconds(20, 31, 20, 31, 20, 31, 20, 31)
    assert verdict(report).startswith("Type `drafterforge generate drafter=sql` for “sql”, the simplest: 1.90x")
    report["rows"][-1] |= {"speedup": 2.1}
    assert verdict(report).startswith("Type `drafterforge generate drafter=sql` for “sql”, the simplest: 1.90x")


def test_batch_sizes_are_not_compared_with_each_other():
    rows = [
        live_row(name, speedup, bounds, axis="batch size", at=float(size), batch_size=size, num_prompts=8 * size)
        for size, factor in ((1, 1.0), (8, 0.6))
        for name, speedup, bounds in (
            ("autoregressive", 1.0, None),
            ("pool", 3 * factor, [2.9 * factor, 3.1 * factor]),
            ("sql", 2 * factor, [1.9 * factor, 2.1 * factor]),
        )
    ]
    sentences = summarize(full_report(rows=rows, curves={})).sentences
    assert [sentence.partition(":")[0] for sentence in sentences] == ["Run “pool”", "Run “pool”"]
    assert "3.00x" in sentences[0] and sentences[0].endswith("(mixed, float32, batch size 1).")
    assert "1.80x" in sentences[1] and sentences[1].endswith("(mixed, float32, batch size 8).")


def test_rows_on_an_axis_say_what_they_vary(capsys):
    axis = {"axis": "batch size", "at": 8.0, "batch_size": 8, "source": "live", "wilcoxon_p_holm": 0.01, "peak_mb": 1}
    rows = [live_row("sql", 1.5, [1.4, 1.6], temperature=t, mismatches=1, **axis) for t in (0.0, 0.7)]
    report = full_report(rows=[PLAIN | {"wilcoxon_p_holm": None, "peak_mb": 1}, *rows], curves={})
    (timed, *_) = tables_of(report)
    assert [cells[0] for cells in timed.cells] == [
        "autoregressive", "sql (batch size 8)", "sql (batch size 8, temperature 0.7)",
    ]  # fmt: skip
    print_report(report, "hedgespec")
    out = capsys.readouterr().out
    assert "live, by batch size" in out and "sql (temperature" in out  # a narrow terminal wraps the rest
    assert [fault.partition(":")[0] for fault in lossless_faults(report)] == [cells[0] for cells in timed.cells[1:]]


def test_overlapping_parts_of_replayed_traffic_are_counted_once():
    parts = ("all requests", "last 8 requests", "requests of a", "other domains afterwards")
    rows = [
        live_row(name, 1.2, [1.1, 1.3], domain=part, mismatches=int(name == "auto"))
        for part in parts
        for name in ("autoregressive", "auto")
    ]
    report = full_report(rows=rows, curves={}, suite="replayed traffic")
    assert summarize(report).headline == "NOT LOSSLESS: 2 mismatches" and len(lossless_faults(report)) == 2
    for row in report["rows"]:
        row["mismatches"] = 0
    assert summarize(report).details[0].startswith("16 answers compared with")
