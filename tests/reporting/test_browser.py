"""Chromium opens a report: nothing on the console, no figure missing, no scrolling to the side on a phone."""

from __future__ import annotations

import pytest

from drafterforge.reporting.page import render_page
from tests.reporting.builders import FIGURES, full_report, live_row
from tests.reporting.chromium import Page
from tests.reporting.test_page import full

pytestmark = pytest.mark.slow
LONG = "a-drafter-with-a-name-that-does-not-end-" * 3


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    page = Page(tmp_path_factory.mktemp("chromium"))
    yield page
    page.close()


@pytest.fixture(scope="module", params=["lossless", "lossy"])
def file(tmp_path_factory, request):
    page = full()[1]
    if request.param == "lossy":
        report = full_report()
        report["rows"].append(live_row(LONG, 1.5, [1.4, 1.6], mismatches=3))
        report["curves"]["mat_by_domain"]["sql"][LONG] = 2.0
        report["suite"] = LONG
        page = render_page(report)
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_fits_the_screen_in_both_themes(page, file, width, scheme):
    page.open(file, width, scheme)
    assert page.console == []
    assert page.ask("document.documentElement.scrollWidth") <= width
    sizes = page.ask("[...document.querySelectorAll('figure svg')].map(one => one.getBoundingClientRect().width)")
    assert len(sizes) == len(FIGURES) and all(200 < size <= width for size in sizes)
    lightness = "(colour => colour.match(/\\d+/g).map(Number).reduce((a, b) => a + b))"
    ink = page.ask(f"{lightness}(getComputedStyle(document.querySelector('svg text')).fill)")
    paper = page.ask(f"{lightness}(getComputedStyle(document.body).backgroundColor)")
    assert (ink > 600 and paper < 100) if scheme == "dark" else (ink < 100 and paper > 600)
    requests = page.ask("performance.getEntriesByType('resource').length")
    assert requests == 0
