"""The tables of a report, as text: rows, selectors, schedules, live beside replay, mismatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drafterforge.reporting.noise import WIDE, is_wide
from drafterforge.reporting.reader import (
    count,
    curves_of,
    interval,
    is_live,
    mapping,
    number,
    records,
    rows_of,
    text,
    whole_rows,
)

MOST_ROWS = 200  # of a table; report.json has them all


@dataclass(frozen=True)
class TableOf:
    """Headings and cells; names are on the left, numbers on the right."""

    title: str
    headings: list[str]
    cells: list[list[str]]
    names: int = 1  # columns of names
    note: str = ""
    wrong: list[int] = field(default_factory=list)  # rows to be marked

    @staticmethod
    def of(title: str, headings: Sequence[str], cells: Sequence[list[str]], **more: Any) -> TableOf:
        """A table cut to `MOST_ROWS`, without columns in which no row has anything."""
        filled = [place for place, _ in enumerate(headings) if not place or any(row[place] for row in cells)]
        named = more.pop("names", 1)
        names = sum(place < named for place in filled)
        note = more.pop("note", "")
        if len(cells) > MOST_ROWS:
            note += f" The first {MOST_ROWS} of {len(cells):,} rows; report.json has them all."
        kept = [[row[place] for place in filled] for row in cells[:MOST_ROWS]]
        return TableOf(title, [headings[place] for place in filled], kept, names, note.strip(), **more)


def tables_of(report: Mapping[str, Any]) -> list[TableOf]:
    """Every table for which the report holds something."""
    made = (
        _timed(report),
        _selectors(report),
        _schedules(report),
        _live(report),
        _mismatches(report),
        _timed_parts(report),
    )
    return [table for table in made if table.cells]


def shown(value: Any, form: str = ".2f", unit: str = "") -> str:
    """A number in its form; empty if there is none."""
    found = number(value)
    return "" if found is None else f"{found:{form}}{unit}"


def range_of(row: Mapping[str, Any]) -> str:
    """The interval of the speed-up."""
    bounds = interval(row)
    return f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else ""


def _timed(report: Mapping[str, Any]) -> TableOf:
    return _timed_rows("Timed", [row for row in whole_rows(report) if is_live(row)])


def _timed_parts(report: Mapping[str, Any]) -> TableOf:
    """Rows of single domains, where the same was told of all of them."""
    whole = [id(row) for row in whole_rows(report)]
    return _timed_rows("Timed, by domain", [row for row in rows_of(report) if is_live(row) and id(row) not in whole])


def _timed_rows(title: str, rows: list[Mapping[str, Any]]) -> TableOf:
    domains = {text(row.get("domain")) for row in rows}
    cells = [
        [
            text(row.get("method")),
            text(row.get("domain")) if len(domains) > 1 else "",
            shown(row.get("speedup"), ".2f", "x"),
            range_of(row) + (" (wide)" if is_wide(row) else ""),
            shown(row.get("mismatches"), ".0f"),
            shown(row.get("tokens_per_s"), ".1f"),
            shown(row.get("mat")),
            shown(row.get("wilcoxon_p_holm", row.get("wilcoxon_p")), ".2g"),
            shown(row.get("num_prompts"), ".0f"),
            shown(row.get("peak_mb"), ".1f"),
            text(row.get("dtype")),
        ]
        for row in rows
    ]
    headings = ["method", "domain", "speed-up", "95 %", "mismatches", "tokens/s", "MAT", "p", "prompts", "MB", "dtype"]
    note = "Timed live, methods taking turns prompt by prompt. Speed-up: tokens/s over autoregressive decoding."
    if any(number(row.get("mat")) is not None for row in rows):
        note += " MAT: mean number of tokens that a cycle (one draft and its verification) emits."
    if any(map(is_wide, rows)):
        note += f" Wide: the interval is wider than {WIDE:.0%} of the speed-up."
    if any("wilcoxon_p_holm" in row for row in rows):
        note += " p: paired Wilcoxon over prompts, all rows of this table corrected together (Holm)."
    if any(number(row.get("peak_mb")) is not None for row in rows):
        note += " MB: most memory an answer held beyond the weights."
    wrong = [place for place, row in enumerate(rows) if count(row.get("mismatches"))]
    return TableOf.of(title, headings, cells, names=2, note=note, wrong=wrong)


def _selectors(report: Mapping[str, Any]) -> TableOf:
    rows = [row for row in whole_rows(report) if not is_live(row)]
    rows.sort(key=lambda row: -(number(row.get("mat")) or 0))
    domains = {text(row.get("domain")) for row in rows}
    cells = [
        [
            text(row.get("method")),
            text(row.get("domain")) if len(domains) > 1 else "",
            shown(row.get("mat"), ".3f"),
            shown(row.get("of_hindsight"), ".3f"),
            shown(row.get("regret_cycles")),
            shown(row.get("share_on_best")),
            shown(row.get("switches_per_cycle")),
            shown(row.get("p_selector_no_better"), ".2g"),
            ", ".join(f"{text(key)}={text(value)}" for key, value in mapping(row.get("options")).items()),
        ]
        for row in rows
    ]
    headings = [
        "method",
        "domain",
        "MAT",
        "of hindsight",
        "regret, cycles",
        "on the best",
        "switches",
        "p",
        "constants",
    ]
    note = (
        "Replayed exactly, so no clock and no noise of one. Regret: cycles a request more than its best drafter alone "
        "takes; p: that the suite's selector is no better than this row."
    )
    return TableOf.of("Drafters and selectors, replayed", headings, cells, names=2, note=note)


def _schedules(report: Mapping[str, Any]) -> TableOf:
    rows = records(curves_of(report).get("replayed"))
    base = next((row for row in rows if text(row.get("name")).startswith(("best static tree", "best arm of the"))), {})
    static = number(base.get("tokens_per_s"))
    cells = []
    for row in rows:
        rate = number(row.get("tokens_per_s"))
        gain = f"{100 * (rate / static - 1):+.1f} %" if rate and static else ""
        wins = number(row.get("faster_on"))
        cells.append(
            [
                text(row.get("name")),
                shown(row.get("mat")),
                shown(rate),
                gain,
                shown(row.get("actions"), ".0f"),
                "" if wins is None else f"{100 * wins:.0f} %",
            ]
        )
    headings = ["schedule", "MAT", "tokens/s", "over best static", "actions used", "answers won"]
    profile = text(curves_of(report).get("profile"))
    note = f"Replayed on recorded answers, priced for {profile}." if profile else "Replayed on recorded answers."
    return TableOf.of("Schedules, replayed", headings, cells, note=note)


def _live(report: Mapping[str, Any]) -> TableOf:
    cells = []
    for row in records(curves_of(report).get("live")):
        other = row.get("other_text")
        cells.append(
            [
                text(row.get("method")),
                shown(row.get("num_cycles"), ",.0f"),
                shown(row.get("replayed_cycles"), ",.0f"),
                shown(row.get("requests_with_other_cycles"), ".0f"),
                str(len(other)) if isinstance(other, list) else shown(other, ".0f"),
            ]
        )
    headings = ["method", "live cycles", "replayed cycles", "requests that differ", "with other text"]
    return TableOf.of("Live beside replay", headings, cells, note="Decoded in batches; a replay has the live cycles.")


def _mismatches(report: Mapping[str, Any]) -> TableOf:
    curves = curves_of(report)
    found = [("timed", one) for one in records(curves.get("mismatches"))]
    found += [("in batches", o) for one in records(curves.get("live")) for o in records(one.get("other_text"))]
    cells = [
        [
            text(one.get("method")),
            where,
            shown(one.get("prompt"), ".0f"),
            shown(one.get("position"), ".0f"),
            shown(one.get("margin"), ".2g"),
            "equal in float64" if one.get("rerun") else "",
        ]
        for where, one in found
    ]
    headings = ["method", "where", "prompt", "token", "margin", "settled"]
    note = "First differences from autoregressive decoding. Margin: the target's top-1 minus top-2 logit there."
    wrong = [place for place, (_, one) in enumerate(found) if not one.get("rerun")]
    return TableOf.of("Mismatches", headings, cells, names=2, note=note, wrong=wrong)
