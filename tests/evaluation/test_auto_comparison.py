"""Ratios of `auto` to the best fixed method and to plain decoding, from measurements made by hand."""

from __future__ import annotations

import pytest

from drafterforge.config.names import AUTO
from drafterforge.evaluation.auto_comparison import compare_auto
from drafterforge.evaluation.measurements import Measurement, RequestInfo
from drafterforge.evaluation.methods import AUTOREGRESSIVE
from drafterforge.reporting.auto_tables import auto_sentences, auto_tables
from drafterforge.runtime.rows import Generation

SECONDS = {  # of 10 tokens
    "sql": {AUTOREGRESSIVE: 2.0, "general": 1.0, "store": 1.5, AUTO: 1.25},
    "chat": {AUTOREGRESSIVE: 1.0, "general": 2.0, "store": 1.5, AUTO: 1.0},
}


def measure(method: str, domain: str, group: int, seconds: float, rows: int = 1, **fields: float | str) -> Measurement:
    answers = [Generation([1], list(range(10)), time_s={"total": seconds}) for _ in range(rows)]
    requests = [RequestInfo(group, domain) for _ in answers]
    return Measurement(method, requests, answers, seconds=seconds, group=group, **fields)


def stream() -> list[Measurement]:
    return [
        measure(method, domain, group, seconds)
        for group, (domain, methods) in enumerate(SECONDS.items())
        for method, seconds in methods.items()
    ]


def test_each_domain_has_its_own_best_method_and_all_domains_have_one():
    rows = {row["domain"]: row for row in compare_auto(stream(), 4)["domains"]}
    assert (rows["sql"]["best"], rows["chat"]["best"]) == ("general", AUTOREGRESSIVE)
    assert rows["sql"]["over_best"] == pytest.approx(1.0 / 1.25) and rows["sql"]["over_plain"] == pytest.approx(1.6)
    assert rows["chat"]["over_best"] == rows["chat"]["over_plain"] == 1.0
    assert rows["all"]["best"] in (AUTOREGRESSIVE, "general", "store")  # 3 s each
    assert rows["all"]["over_best"] == pytest.approx(3.0 / 2.25, abs=1e-4)


def test_too_few_prompts_have_no_interval():
    assert all(row["over_best_ci95"] is row["over_plain_ci95"] is None for row in compare_auto(stream(), 4)["domains"])
    (row, *_) = compare_auto(stream() + stream(), 4)["domains"]
    assert len(row["over_best_ci95"]) == len(row["over_plain_ci95"]) == 2
    domains, *_ = auto_tables({"curves": {"auto": {"domains": [row, row | {"num_prompts": 3}]}}})  # of an older report
    assert domains.cells[0][4].count("-") == 1 and domains.cells[1][4] == ""


def test_a_batch_counts_its_seconds_once():
    seconds = {AUTOREGRESSIVE: 2.0, "general": 4.0, AUTO: 2.5}
    cells = compare_auto(
        [measure(method, "sql", 0, total, rows=4, axis="cell", at=256.0) for method, total in seconds.items()], 4
    )["cells"]
    assert [(cell["batch_size"], cell["context"], cell["best"]) for cell in cells] == [(4, 256.0, AUTOREGRESSIVE)]
    assert cells[0]["over_best"] == pytest.approx(0.8) and cells[0]["num_prompts"] == 4


def test_the_report_names_the_worst_domain():
    curves = {"auto": compare_auto(stream(), 4)}
    domains, *_ = auto_tables({"curves": curves})
    assert [row[0] for row in domains.cells] == ["all", "chat", "sql"]
    assert "sql" in auto_sentences({"curves": curves})[0] and "general" in auto_sentences({"curves": curves})[0]


def test_regret_is_counted_in_seconds_per_1000_tokens_against_the_best_fixed_method_in_hindsight():
    rows = {row["domain"]: row for row in compare_auto(stream(), 4)["domains"]}
    assert rows["sql"]["best_fixed"] == "general" and rows["chat"]["best_fixed"] == AUTOREGRESSIVE
    assert rows["sql"]["regret_s"] == {AUTOREGRESSIVE: 100.0, "general": 0.0, "store": 50.0, AUTO: 25.0}
    assert rows["chat"]["regret_s"] == {AUTOREGRESSIVE: 0.0, "general": 100.0, "store": 50.0, AUTO: 0.0}
    assert rows["all"]["regret_s"] == {AUTOREGRESSIVE: 0.0, "general": 0.0, "store": 0.0, AUTO: -37.5}
    assert rows["all"]["regret_s_by_prompt"] == {AUTOREGRESSIVE: 50.0, "general": 50.0, "store": 50.0, AUTO: 12.5}
    for domain in ("sql", "chat"):  # of one prompt
        assert rows[domain]["regret_s_by_prompt"] == rows[domain]["regret_s"]


def test_a_method_that_selects_online_is_no_fixed_method_but_has_a_regret():
    selecting = measure("hedgespec", "sql", 0, 0.5, selector="hedgespec")
    (row,) = compare_auto([entry for entry in stream() if entry.domain == "sql"] + [selecting], 4)["domains"]
    assert row["best"] == row["best_fixed"] == "general" and row["over_best"] == pytest.approx(1.0 / 1.25)
    assert row["regret_s"]["hedgespec"] == row["regret_s_by_prompt"]["hedgespec"] == -50.0


def test_cells_have_the_regret_of_all_their_prompts():
    seconds = {AUTOREGRESSIVE: 2.0, "general": 4.0, AUTO: 2.5}
    cells = compare_auto(
        [measure(method, "sql", 0, total, rows=4, axis="cell", at=256.0) for method, total in seconds.items()], 4
    )["cells"]
    assert cells[0]["regret_s"] == {AUTOREGRESSIVE: 0.0, "general": 50.0, AUTO: 12.5}
    assert "regret_s_by_prompt" not in cells[0]
