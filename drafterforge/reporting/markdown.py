"""`report.md`: the report's words and tables, for a pull request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from drafterforge.reporting.figures import figures_of
from drafterforge.reporting.tables import TableOf, tables_of
from drafterforge.reporting.verdict import byline_of, heading_of, particulars, summarize

MARKS = {"lossless": "✅", "lossy": "❌", "differs": "⚠️", "unsettled": "⚠️", "unchecked": "⚠️"}
IN_TABLES = ("speedups", "selectors", "schedules")  # figures whose numbers stand in a table already
# Names are strangers': what formats is escaped, what links or calls on people is broken up.
SPECIAL = re.compile(r"[\\`*_\[\]|~]|[$@#]|:(?=/)|(?<=www)\.", re.IGNORECASE)
BROKEN = {"$": "&#36;", "@": "@<!-- -->", "#": "\\#<!-- -->", ":": "&#58;", ".": "&#46;"}


def plain(words: str) -> str:
    """Text that Markdown shows as it is."""
    return SPECIAL.sub(lambda found: BROKEN.get(found[0], f"\\{found[0]}"), escape(words, quote=False))


def render_markdown(report: Mapping[str, Any]) -> str:
    """The whole file; the same report gives the same bytes."""
    summary = summarize(report)
    level = "# " if summary.state == "lossy" else "**"
    close = "" if summary.state == "lossy" else "**"
    noise = ["\n".join(f"> ⚠️ {plain(one)}  " for one in summary.noise)] if summary.noise else []
    verdict = [f"{level}{MARKS[summary.state]} {plain(summary.headline)}{close}", *_list(summary.details)]
    said = [*map(plain, summary.sentences), *noise]
    byline = [plain(byline)] if (byline := byline_of(report)) else []
    words = verdict + said if summary.state == "lossy" else said + verdict
    parts = [f"# {plain(heading_of(report))}", *byline, *words]
    tables = tables_of(report)
    parts += [part for table in tables[:1] for part in _section(table)]
    figures = [figure for figure in figures_of(report) if figure.key not in IN_TABLES]
    parts += [part for one in figures for part in _section(one.table, one.alt)]
    parts += [part for table in tables[1:] for part in _section(table)]
    listed = "\n".join(f"- {plain(key)}: {plain(value)}" for key, value in particulars(report))
    parts += ["## Measured", listed]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(details: list[str]) -> list[str]:
    return ["\n".join(f"- {plain(one)}" for one in details)]


def _section(table: TableOf, note: str = "") -> list[str]:
    said = note or table.note
    whole = markdown_table(table)
    if len(table.cells) > 12:
        whole = f"<details><summary>{len(table.cells)} rows</summary>\n\n{whole}\n\n</details>"
    return [f"## {plain(table.title)}", plain(said), whole]


def markdown_table(table: TableOf) -> str:
    """A pipe table; marked rows are bold."""
    lines = [table.headings, [":--" if place < table.names else "--:" for place in range(len(table.headings))]]
    shown = [f"| {' | '.join(plain(one) for one in lines[0])} |", f"| {' | '.join(lines[1])} |"]
    for place, cells in enumerate(table.cells):
        wrong = place in table.wrong
        shown.append(f"| {' | '.join(f'**{plain(one)}**' if wrong and one else plain(one) for one in cells)} |")
    return "\n".join(shown)
