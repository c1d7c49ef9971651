"""Every published number has a source and is plausible."""

from __future__ import annotations

import re

import pytest

from drafterforge.reporting.papers.form import FIGURES
from drafterforge.reporting.papers.forms import FORMS
from drafterforge.reporting.published import published

OURS = {"priced", "over_best", "sampled", "many_drafters", "hedgespec_natural"}  # forms of no paper
LIMITS = {"tokens_per_s": (20, 200), "actions": (1, 177), "verify_ms": (1, 200), "draft_ms": (0.1, 20)}
LIMITS |= {"select_ms": (0.01, 5), "accuracy": (0, 100), "faster_tasks": (0, 57), "schedule_of_total": (0, 100)}
LIMITS |= {f"{step}_of_overhead": (0, 100) for step in ("draft", "host", "schedule")}


def test_every_published_number_has_paper_table_target_hardware_and_address():
    publication = published()
    for table in publication.tables:
        assert re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", publication.papers[table.paper].address)
        assert table.read.startswith("https://")
        assert all((table.table, table.target, table.hardware))
        assert re.match(r"(arXiv v\d|ICLR 20\d\d|ICML 20\d\d|AAAI 20\d\d|ACL Findings 20\d\d), ", table.version)
        assert re.search(r"(Table|Figure) \d|appendix", table.table) or "does not number the" in table.note
        assert table.form in {form.key for form in FORMS}
        for row in table.rows:
            assert row.figure in FIGURES
            assert len(row.values) == len(table.columns)
            assert row.method


def test_unpublished_numbers_are_empty_and_the_note_says_so():
    for table in published().tables:
        if not table.rows or any(None in row.values for row in table.rows):
            assert re.search(r"not in our source|as reviews .* quote", table.note), table


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
