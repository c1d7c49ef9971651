"""`report.html` and `report.md` are complete, inert, reproducible, and robust to missing keys."""

from __future__ import annotations

import functools
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from drafterforge.errors import ArtifactError
from drafterforge.reporting import charts
from drafterforge.reporting import page as page_module
from drafterforge.reporting.figures import Figure, figures_of
from drafterforge.reporting.markdown import plain, render_markdown
from drafterforge.reporting.page import DARK, LIGHT, render_page
from drafterforge.reporting.reader import CURVES, read_report, text
from drafterforge.reporting.tables import tables_of
from drafterforge.reporting.verdict import lossless_faults, summarize
from tests.reporting.builders import FIGURES, full_report, live_row, replay_row

VOID = {"meta", "br", "hr", "img", "link", "input"}
EVIL = "<script>alert(1)</script>\"'> $x_{ @all ]]> --> \u202e\ud800\x00 {0} #010203"


class Reader(HTMLParser):
    """Tags, text and references to other files of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.stack: list[str] = []
        self.text: dict[str, str] = {}
        self.feed(page)
        self.close()
        assert self.stack == [], f"not closed: {self.stack}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack:
            self.text[self.stack[-1]] = self.text.get(self.stack[-1], "") + data


def check(page: str) -> Reader:
    """Check that the page is one complete, inert file; returns its reader."""
    reader = Reader(page)
    names = [tag for tag, _ in reader.tags]
    assert not {"script", "img", "link", "iframe", "object", "embed", "base", "form"} & set(names)
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in reader.tags:
        assert not any(key.startswith("on") for key in attrs)
        for key in ("src", "href", "xlink:href"):
            assert attrs.get(key, "#").startswith("#") and attrs.get(key, "#")[1:] in ["", *ids]
        for key in ("aria-labelledby", "clip-path"):
            assert set(re.sub(r"url\(#|\)", "", attrs.get(key, "")).split()) <= set(ids)
    assert "url(http" not in page and "@import" not in page
    assert names.count("figure") == names.count("svg") == names.count("desc") == names.count("figcaption")
    assert names.count("title") == 1 + names.count("svg")
    assert names.count("h1") == 1 and names.count("table") == sum(a.get("class") == "scroll" for _, a in reader.tags)
    return reader


@functools.cache
def full() -> tuple[list[Figure], str]:
    """Figures and page of the full report, drawn once because drawing takes seconds."""
    figures = figures_of(full_report())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, "figures_of", lambda report: figures)
        return figures, render_page(full_report())


DRAWN: dict[tuple[str, str], str] = {}


@pytest.fixture
def drawn_once(monkeypatch):
    """Equal charts are drawn once for all tests, because drawing takes seconds."""

    def remembered(chart):
        def drawn(*arguments, **options):
            key = chart.__name__, repr((arguments, options))
            if key not in DRAWN:
                DRAWN[key] = chart(*arguments, **options)
            return DRAWN[key]

        return drawn

    for name in ("areas", "bars", "dots", "heat_map", "lines", "scatter", "stacked"):
        monkeypatch.setattr(charts, name, remembered(getattr(charts, name)))


def test_every_figure_has_a_title_a_description_and_its_numbers():
    figures, page = full()
    assert {figure.key for figure in figures} == FIGURES
    assert all(figure.title and figure.alt.endswith(".") and figure.table.cells for figure in figures)
    reader = check(page)
    assert sum(tag == "svg" and attrs.get("role") == "img" for tag, attrs in reader.tags) == len(FIGURES)


def test_colours_and_letters_of_figures_follow_the_theme():
    figures, page = full()
    for figure in figures:
        tags = "".join(re.findall(r"<[^<>]*>", figure.svg))
        assert not re.search(r"(fill|stroke): *#", tags), figure.key
        assert "DejaVu" not in tags and "var(--font)" in tags and "<text" in tags
    used = set(re.findall(r"var\(--(\w+)\)", page)) - {"font"}
    for theme in (LIGHT, DARK):
        assert used <= set(re.findall(r"--([\w-]+):", theme))


@pytest.mark.slow
def test_the_same_report_gives_the_same_bytes():
    assert render_page(full_report()) == full()[1]
    assert render_markdown(full_report()) == render_markdown(full_report())


def renamed(value, name):
    """The report with `name` appended to every name and to every key of a curve."""
    if isinstance(value, dict):
        return {
            f"{name}{key}" if isinstance(key, str) and key in NAMED else key: renamed(v, name)
            for key, v in value.items()
        }
    if isinstance(value, list):
        return [renamed(item, name) for item in value]
    return f"{value}{name}" if isinstance(value, str) and value not in FIXED else value


NAMED = {"sql", "math", "hedgespec", "ucb1", "pool size", "c"}
FIXED = {"static", "oracle", "none", "live", "replay", "float32", "fast"}


@pytest.mark.slow
def test_hostile_names_are_shown_as_inert_text():
    report = renamed(full_report(), EVIL)
    page = render_page(report)
    check(page)
    page.encode()
    assert "&lt;script&gt;" in page and "\u202e" not in page and "\x00" not in page
    assert '<svg role="img"' in page and "#010203" in "".join(Reader(page).text.values())  # as text, not as a colour
    written = render_markdown(report)
    assert "<script" not in written and "@all" not in written
    written.encode()


def test_markdown_shows_names_as_they_are():
    assert plain("a|b *c* [d](e)") == r"a\|b \*c\* \[d\](e)"
    assert plain("https://x www.y @z #1") == r"https&#58;//x www&#46;y @<!-- -->z \#<!-- -->1"
    assert plain("<b>&") == "&lt;b&gt;&amp;"


def test_a_name_is_shown_as_one_line_of_visible_characters():
    assert text("a\nb\u202ec\ud800") == "a\ufffdb\ufffdc\ufffd" and text(None) == "" and text(3) == "3"
    assert len(text("x" * 1000)) == 80 and text("x" * 1000).endswith("…")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "left_out", ["curves", *CURVES, "rows", "target", "dtype", "numerics", "device", "suite", "seed"]
)
def test_a_report_without_a_key_has_a_page_without_its_section(left_out, drawn_once):
    report = full_report()
    report.pop(left_out, None)
    report.get("curves", {}).pop(left_out, None)
    check(render_page(report))
    assert render_markdown(report).startswith("# ")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["mat", "name", "at", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(
    st.dictionaries(st.sampled_from(sorted(CURVES)), JUNK),
    st.dictionaries(st.sampled_from(sorted(live_row("a", 1, None))), JUNK),
)
def test_junk_in_a_report_is_left_out(drawn_once, curves, row):
    report = full_report(
        curves=curves, rows=[live_row("sql", 1.2, [1.1, 1.3]) | row, replay_row("a", "static", 2.0) | row]
    )
    check(render_page(report))
    render_markdown(report)
    lossless_faults(report)


def test_rows_of_single_domains_are_not_counted_again():
    parts = [
        live_row("sql alone", 1.2, [1.1, 1.3], domain="a"),
        live_row("sql alone", 1.4, [1.3, 1.5], domain="b", mismatches=1),
    ]
    plain = [live_row("autoregressive", 1.0, None, domain=name) for name in ("all", "a", "b")]
    report = full_report(
        rows=[*plain, live_row("sql alone", 1.3, [1.2, 1.4], domain="all", mismatches=1), *parts], curves={}
    )
    assert len(lossless_faults(report)) == 1 and summarize(report).headline == "NOT LOSSLESS: 1 mismatch"
    full, *_, parts_alone = tables_of(report)
    assert [(table.title, len(table.cells)) for table in (full, parts_alone)] == [
        ("Timed", 2), ("Timed, by domain", 4),
    ]  # fmt: skip
    bars, by_domain = figures_of(report)[:2]
    assert [row[0] for row in bars.table.cells] == ["autoregressive", "sql alone"]
    assert by_domain.key == "speedups-by-domain" and by_domain.table.cells == [["sql alone", "1.200", "1.400"]]


def test_texts_of_other_programs_are_not_counted_as_compared():
    external = live_row("HF generate", 0.8, [0.7, 0.9], mismatches=None, external=True)
    report = full_report(
        rows=[live_row("autoregressive", 1.0, None), live_row("sql alone", 1.3, [1.2, 1.4]), external], curves={}
    )
    assert summarize(report).details[0].startswith("8 answers compared")


def test_an_empty_report_has_a_page():
    check(render_page({}))
    assert summarize({}).state == "unchecked"


def test_a_lossless_report_says_so_and_what_to_run():
    summary = summarize(full_report())
    assert lossless_faults(full_report()) == [] and (summary.state, summary.headline) == (
        "lossless",
        "Lossless: 0 mismatches",
    )
    assert "Run “hedgespec over the pool”: 1.80x, 95 % interval 1.60-2.00 over" in summary.sentences[0]
    assert "“hedgespec” 2.60; the best drafter alone “sql alone” 2.00; “best in hindsight” 2.50" in summary.sentences[1]
    assert "“policy planner” +4.9 % tokens/s over “best static tree 8/3/4”" in summary.sentences[2]


def test_an_interval_around_1_or_a_slow_decoder_gives_no_advice():
    plain_row = live_row("autoregressive", 1.0, None)
    unsure = summarize(full_report(rows=[plain_row, live_row("sql", 1.2, [0.9, 1.5])])).sentences[0]
    assert "Nothing is shown to beat plain decoding on 8 prompts" in unsure
    slow = summarize(full_report(rows=[plain_row, live_row("sql", 0.8, [0.7, 0.9])])).sentences[0]
    assert slow.startswith("Run plain decoding")


@pytest.mark.parametrize(("dtype", "numerics"), [("float32", "fast"), ("bfloat16", "invariant")])
def test_a_lossy_report_is_red_first_and_failed(dtype, numerics):
    wrong = live_row("sql alone", 1.9, [1.8, 2.0], mismatches=3, dtype=dtype, numerics=numerics)
    report = full_report(rows=[live_row("autoregressive", 1.0, None), wrong], curves={})
    assert lossless_faults(report) == [
        f"sql alone: 3 of 8 answers differ from autoregressive decoding ({dtype}, {numerics} numerics)"
    ]
    page = render_page(report)
    verdict = page.index('<div class="verdict lossy" role="alert"><strong>NOT LOSSLESS: 3 mismatches</strong>')
    assert verdict < page.index("MAT, replayed") if "MAT, replayed" in page else verdict
    assert "Run “sql alone”" not in page and '<tr class="wrong"><th scope="row">sql alone' in page
    assert "# ❌ NOT LOSSLESS: 3 mismatches" in render_markdown(report)


def test_fast_half_precision_may_differ_and_is_shown():
    differs = live_row("sql alone", 1.9, [1.8, 2.0], mismatches=2, dtype="bfloat16")
    curves = {"mismatches": [{"method": "sql alone", "prompt": 3, "position": 17, "margin": 0.015, "rerun": False}]}
    report = full_report(rows=[differs], curves=curves)
    assert lossless_faults(report) == [] and summarize(report).state == "differs"
    assert tables_of(report)[-1].cells == [["sql alone", "timed", "3", "17", "0.015"]]


@pytest.mark.parametrize(
    ("margin", "rerun", "state"), [(0.5, False, "lossy"), (1e-6, False, "unsettled"), (1e-6, True, "lossless")]
)
def test_other_text_of_live_batches_fails_unless_rounding_explains_it(margin, rerun, state):
    report = full_report()
    divergence = {"method": "sql", "prompt": 0, "position": 2, "margin": margin, "rerun": rerun}
    report["curves"]["live"][0]["other_text"] = [divergence]
    assert summarize(report).state == state and bool(lossless_faults(report)) == (state == "lossy")


def test_older_reports_are_read(tmp_path):
    older = {
        "grid": {},
        "profile": "cpu",
        "live": full_report()["rows"][:2],
        "replayed": full_report()["curves"]["replayed"],
    }
    (tmp_path / "schedules.json").write_text(json.dumps(older))
    report = read_report(tmp_path)
    assert {figure.key for figure in figures_of(report)} == {"speedups", "schedules", "cost", "times"}
    counted = full_report()
    counted["curves"]["live"][0]["other_text"] = 2  # a count, without margins
    assert summarize(counted).state == "unsettled" and lossless_faults(counted) == []
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ArtifactError, match="is no report"):
        read_report(tmp_path / "other.json")
