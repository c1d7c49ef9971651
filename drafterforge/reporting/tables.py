"""The tables of a report, as text: timed rows, selectors, schedules, live against replay, mismatches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from drafterforge.reporting.auto_tables import auto_tables
from drafterforge.reporting.noise import WIDE, is_wide
from drafterforge.reporting.reader import (
    count,
    curves_of,
    interval,
    is_live,
    mapping,
    name_with,
    number,
    overall_rows,
    records,
    rows_of,
    text,
)
from drafterforge.reporting.report_table import ReportTable, format_number
from drafterforge.schedulers.actions import TREE_LEGEND

OPTIONS_LEGEND = "options: those of the selector that are not its defaults"
TREE_NAME = re.compile(r"\b\d+/\d+/\d+\b")  # see `schedulers.actions.describe`


def names_trees(names: Iterable[str]) -> bool:
    """Whether a name holds a tree, such as 60/8/10."""
    return any(map(TREE_NAME.search, names))


def tables_of(report: Mapping[str, Any]) -> list[ReportTable]:
    """All tables for which the report has rows."""
    tables = (
        *auto_tables(report),
        _timed(report),
        _selectors(report),
        _reward_signals(report),
        _schedules(report),
        _live(report),
        _served_drafters(report),
        _learned(report),
        _mismatches(report),
        _timed_parts(report),
    )
    return [table for table in tables if table.cells]


def format_interval(row: Mapping[str, Any]) -> str:
    """The 95 % interval of the speed-up; empty if there is none."""
    bounds = interval(row)
    return f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else ""


def _timed(report: Mapping[str, Any]) -> ReportTable:
    in_cells = bool(mapping(curves_of(report).get("auto")))  # a table of its own shows rows on an axis
    rows = [row for row in overall_rows(report) if is_live(row) and not (in_cells and row.get("axis"))]
    return _timed_rows("Timed", rows)


def _timed_parts(report: Mapping[str, Any]) -> ReportTable:
    """Rows of single domains, for methods that also have a row over all domains."""
    overall = {id(row) for row in overall_rows(report)}
    return _timed_rows("Timed, by domain", [row for row in rows_of(report) if is_live(row) and id(row) not in overall])


def _timed_rows(title: str, rows: list[Mapping[str, Any]]) -> ReportTable:
    domains = {text(row.get("domain")) for row in rows}
    cells = [
        [
            name_with(row),
            text(row.get("domain")) if len(domains) > 1 else "",
            format_number(row.get("speedup"), ".2f", "x"),
            format_interval(row) + (" (wide)" if is_wide(row) else ""),
            format_number(row.get("mismatches"), ".0f"),
            format_number(row.get("tokens_per_s"), ".1f"),
            format_number(row.get("mat")),
            format_number(row.get("wilcoxon_p_holm", row.get("wilcoxon_p")), ".2g"),
            format_number(row.get("num_prompts"), ".0f"),
            format_number(row.get("peak_mb"), ".1f"),
            text(row.get("dtype")),
        ]
        for row in rows
    ]
    headings = ["method", "domain", "speed-up", "95 %", "mismatches", "tokens/s", "MAT", "p", "prompts", "MB", "dtype"]
    note = "Decoded live, methods in turns. Speed-up: tokens/s over those of autoregressive (plain) decoding."
    if any(map(interval, rows)):
        note += " 95 %: its interval."
    if any(number(row.get("mat")) is not None for row in rows):
        note += " MAT: mean number of tokens emitted by a cycle (one draft and its verification)."
    if names_trees(text(row.get("method")) for row in rows):
        note += f" {TREE_LEGEND}."
    if any(map(is_wide, rows)):
        note += f" Wide: the interval is wider than {WIDE:.0%} of the speed-up."
    if any("wilcoxon_p_holm" in row for row in rows):
        note += " p: paired Wilcoxon test over prompts against autoregressive decoding, Holm-corrected over methods."
    if any(number(row.get("peak_mb")) is not None for row in rows):
        note += " MB: peak memory while answering, beyond the weights."
    flagged = [index for index, row in enumerate(rows) if count(row.get("mismatches"))]
    return ReportTable.trimmed(title, headings, cells, 2, note, flagged)


def _selectors(report: Mapping[str, Any]) -> ReportTable:
    rows = [row for row in overall_rows(report) if not is_live(row)]
    rows.sort(key=lambda row: -(number(row.get("mat")) or 0))
    domains = {text(row.get("domain")) for row in rows}
    cells = [
        [
            text(row.get("method")),
            text(row.get("domain")) if len(domains) > 1 else "",
            format_number(row.get("mat"), ".3f"),
            format_number(row.get("of_hindsight"), ".3f"),
            format_number(row.get("regret_cycles")),
            format_number(row.get("share_on_best")),
            format_number(row.get("switches_per_cycle")),
            format_number(row.get("p_selector_no_better"), ".2g"),
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
        "options",
    ]
    note = (
        "Replayed exactly on recorded answers, without timing. Of hindsight: MAT relative to the best drafter of each "
        "request. Regret: cycles per request more than with that drafter. On the best: share of cycles drafted by it. "
        "Switches: changes of drafter per cycle. p: one-sided paired test that the suite's selector is no better, not "
        f"corrected. {OPTIONS_LEGEND[0].upper()}{OPTIONS_LEGEND[1:]}."
    )
    return ReportTable.trimmed("Drafters and selectors, replayed", headings, cells, 2, note)


def _reward_signals(report: Mapping[str, Any]) -> ReportTable:
    cells = [
        [
            text(row.get("domain")),
            text(row.get("reward")),
            format_number(row.get("signal"), ".3f"),
            format_number(row.get("median"), ".3f"),
            "yes" if row.get("agrees") is True else "no",
            text(row.get("best")),
            text(row.get("second")),
        ]
        for row in records(curves_of(report).get("signal_strength"))
    ]
    headings = ["domain", "reward", "R", "median R", "ranks right", "best", "second"]
    note = (
        "MetaSD's signal strength R: squared gap of the mean rewards of the best and the second drafter over the "
        "larger variance, at every position of the answers; the median is over all drafters but the best. The larger "
        "R, the fewer cycles a bandit needs. Ranks right: the best drafter has the highest mean reward."
    )
    return ReportTable.trimmed("Rewards of bandits", headings, cells, 2, note)


def _schedules(report: Mapping[str, Any]) -> ReportTable:
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
                format_number(row.get("mat")),
                format_number(rate),
                gain,
                format_number(row.get("actions"), ".0f"),
                "" if wins is None else f"{100 * wins:.0f} %",
            ]
        )
    headings = ["schedule", "MAT", "tokens/s", "over best static", "trees used", "answers won"]
    profile = text(curves_of(report).get("profile"))
    note = "Replayed on recorded answers" + (f"; seconds from the latency profile of {profile}." if profile else ".")
    note += f" {TREE_LEGEND}." if names_trees(text(row.get("name")) for row in rows) else ""
    return ReportTable.trimmed("Schedules, replayed", headings, cells, note=note)


def _live(report: Mapping[str, Any]) -> ReportTable:
    cells = []
    for row in records(curves_of(report).get("live")):
        differing = row.get("other_text")
        cells.append(
            [
                text(row.get("method")),
                format_number(row.get("num_cycles"), ",.0f"),
                format_number(row.get("replayed_cycles"), ",.0f"),
                format_number(row.get("requests_with_other_cycles"), ".0f"),
                str(len(differing)) if isinstance(differing, list) else format_number(differing, ".0f"),
            ]
        )
    headings = ["method", "live cycles", "replayed cycles", "requests with other cycles", "answers with other text"]
    note = "Decoded live in batches. Replay is exact: both counts of cycles should be equal."
    return ReportTable.trimmed("Live decoding against replay", headings, cells, note=note)


def _served_drafters(report: Mapping[str, Any]) -> ReportTable:
    cells = []
    for method, drafters in mapping(curves_of(report).get("drafters")).items():
        figures = {name: mapping(entry) for name, entry in mapping(drafters).items()}
        total = sum(number(entry.get("cycles")) or 0.0 for entry in figures.values())
        for name, entry in figures.items():
            cycles, accepted = number(entry.get("cycles")) or 0.0, number(entry.get("accepted_tokens"))
            share = f"{cycles / total:.1%}" if total > 0 else ""
            mean = "" if accepted is None or cycles <= 0 else f"{accepted / cycles:.2f}"
            cells.append([text(method), text(name), share, f"{cycles:,.0f}", mean])
    headings = ["method", "drafter", "share of cycles", "cycles", "accepted tokens per cycle"]
    note = "Counted by the server during the timed requests. Accepted tokens: drafted ones, without the target's own."
    return ReportTable.trimmed("Drafters of the served pool", headings, cells, 2, note)


def _learned(report: Mapping[str, Any]) -> ReportTable:
    cells = [
        [
            text(version.get("name")),
            text(version.get("kind")),
            text(version.get("state")),
            format_number(version.get("seed"), ".0f"),
            format_number(version.get("requests"), ".0f"),
            format_number(version.get("gain"), "+.1%"),
            " to ".join(format_number(version.get(key), "+.1%") for key in ("low", "high")),
            text(version.get("rival")),
            format_number(version.get("num_train"), ".0f"),
            format_number(version.get("num_judged"), ".0f"),
        ]
        for version in records(curves_of(report).get("learned"))
    ]
    headings = [
        "drafter",
        "traffic",
        "state",
        "seed",
        "after requests",
        "gain",
        "95 %",
        "over",
        "trained on",
        "judged on",
    ]
    note = (
        "Experts trained on recorded traffic. Gain: in tokens per cycle over the best drafter that was there, paired "
        "by request, on newer requests than those that it was trained on. It joins if the interval lies above 0."
    )
    return ReportTable.trimmed("Learned from traffic", headings, cells, 3, note)


def _mismatches(report: Mapping[str, Any]) -> ReportTable:
    curves = curves_of(report)
    mismatches = [("timed", mismatch) for mismatch in records(curves.get("mismatches"))]
    mismatches += [
        ("in batches", o) for mismatch in records(curves.get("live")) for o in records(mismatch.get("other_text"))
    ]
    cells = [
        [
            name_with(mismatch),
            section,
            format_number(mismatch.get("prompt"), ".0f"),
            format_number(mismatch.get("position"), ".0f"),
            format_number(mismatch.get("margin"), ".2g"),
            "equal" if mismatch.get("rerun") else "",
        ]
        for section, mismatch in mismatches
    ]
    headings = ["method", "decoded", "prompt", "token", "margin", "float64"]
    note = (
        "First difference of each answer from autoregressive decoding. Margin: top-1 minus top-2 logit of the target "
        "there. Equal in float64: rounding at a near tie, not counted as a mismatch."
    )
    flagged = [index for index, (_, mismatch) in enumerate(mismatches) if not mismatch.get("rerun")]
    return ReportTable.trimmed("Mismatches", headings, cells, 2, note, flagged)
