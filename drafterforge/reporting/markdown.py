"""Writes `report.md`: verdict, tables and descriptions of figures, for a pull request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from drafterforge.reporting.figures import figures_of
from drafterforge.reporting.report_table import ReportTable
from drafterforge.reporting.tables import tables_of
from drafterforge.reporting.verdict import byline_of, conditions_of, heading_of, summarize

MARKS = {"lossless": "✅", "lossy": "❌", "differs": "⚠️", "unsettled": "⚠️", "unchecked": "⚠️"}
IN_TABLES = ("speedups", "selectors", "schedules")  # figures whose numbers are in a table already
# Names may be hostile: formatting is escaped, links and mentions are broken up.
SPECIAL = re.compile(r"[\\`*_\[\]|~]|[$@#]|:(?=/)|(?<=www)\.", re.IGNORECASE)
BROKEN = {"$": "&#36;", "@": "@<!-- -->", "#": "\\#<!-- -->", ":": "&#58;", ".": "&#46;"}


def plain(words: str) -> str:
    """Escape text, so that Markdown shows it literally."""
    return SPECIAL.sub(lambda match: BROKEN.get(match[0], f"\\{match[0]}"), escape(words, quote=False))


def render_markdown(report: Mapping[str, Any]) -> str:
    """The content of `report.md`; equal reports give equal bytes."""
    summary = summarize(report)
    level = "# " if summary.state == "lossy" else "**"
    close = "" if summary.state == "lossy" else "**"
    noise = ["\n".join(f"> ⚠️ {plain(sign)}  " for sign in summary.noise)] if summary.noise else []
    verdict = [f"{level}{MARKS[summary.state]} {plain(summary.headline)}{close}", *_list(summary.details)]
    sentences = [*map(plain, summary.sentences), *noise]
    byline = [plain(byline)] if (byline := byline_of(report)) else []
    summary_parts = verdict + sentences if summary.state == "lossy" else sentences + verdict
    parts = [f"# {plain(heading_of(report))}", *byline, *summary_parts]
    tables = tables_of(report)
    parts += [part for table in tables[:1] for part in _section(table)]
    figures = [figure for figure in figures_of(report) if figure.key not in IN_TABLES]
    parts += [part for figure in figures for part in _section(figure.table, figure.alt)]
    parts += [part for table in tables[1:] for part in _section(table)]
    listed = "\n".join(f"- {plain(key)}: {plain(value)}" for key, value in conditions_of(report))
    parts += ["## Measured", listed]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(details: list[str]) -> list[str]:
    return ["\n".join(f"- {plain(detail)}" for detail in details)]


def _section(table: ReportTable, note: str = "") -> list[str]:
    caption = note or table.note
    rendered = markdown_table(table)
    if len(table.cells) > 12:
        rendered = f"<details><summary>{len(table.cells)} rows</summary>\n\n{rendered}\n\n</details>"
    return [f"## {plain(table.title)}", plain(caption), rendered]


def markdown_table(table: ReportTable) -> str:
    """A pipe table; flagged rows are bold."""
    alignment = [":--" if column < table.name_columns else "--:" for column in range(len(table.headings))]
    rows = [[plain(heading) for heading in table.headings], alignment]
    for index, cells in enumerate(table.cells):
        is_flagged = index in table.flagged
        rows.append([f"**{plain(cell)}**" if is_flagged and cell else plain(cell) for cell in cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
