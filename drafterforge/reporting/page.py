"""Writes `report.html`: one file without scripts or external resources, in light and dark, for desktop and phone."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from drafterforge.reporting.figures import Figure, figures_of
from drafterforge.reporting.report_table import ReportTable
from drafterforge.reporting.tables import tables_of
from drafterforge.reporting.verdict import Summary, byline_of, conditions_of, heading_of, summarize

# A mistake in escaping could neither load nor run anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
PHONE_COLUMNS = 4  # columns that fit on a phone
LIGHT = """
    --paper: #fff; --raised: #f6f7f9; --ink: #1b1f24; --faint: #667080; --line: #d8dde3; --heat: #2f7fd1;
    --good: #12703a; --good-ground: #e2f5e9; --bad: #b3141f; --bad-ground: #fde7e8;
    --warn: #7a5300; --warn-ground: #fdf3dc;
    --c0: #2b6cb0; --c1: #c05621; --c2: #2f855a; --c3: #805ad5;
    --c4: #b7791f; --c5: #b83280; --c6: #00808a; --c7: #5a6472;"""
DARK = """
    --paper: #14171b; --raised: #1d2126; --ink: #e7eaee; --faint: #98a2b0; --line: #343a42; --heat: #4a9bf0;
    --good: #6fd699; --good-ground: #14301f; --bad: #ff8088; --bad-ground: #43151a;
    --warn: #f0c25e; --warn-ground: #392c10;
    --c0: #63a8ee; --c1: #ef8f58; --c2: #63c48d; --c3: #b39bf2;
    --c4: #e0b04a; --c5: #ee82bd; --c6: #4cc4cd; --c7: #a5afbc;"""
STYLE = f"""
:root {{ color-scheme: light dark; --font: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
    {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 var(--font); overflow-wrap: anywhere; }}
main {{ max-width: 74rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: .5rem 0 1rem; }}
h2 {{ font-size: 1.2rem; margin: 2.2rem 0 .6rem; }}
h3 {{ font-size: 1rem; margin: 0 0 .5rem; }}
.verdict {{ border-left: .4rem solid; border-radius: .4rem; padding: .8rem 1rem; }}
.verdict strong {{ display: block; font-size: 1.25rem; line-height: 1.3; }}
.verdict p, .verdict ul {{ color: var(--ink); margin: .3rem 0 0; }}
.lossless {{ color: var(--good); background: var(--good-ground); }}
.lossy {{ color: var(--bad); background: var(--bad-ground); }}
.lossy strong {{ font-size: clamp(1.7rem, 7vw, 2.8rem); }}
.differs, .unsettled, .unchecked {{ color: var(--warn); background: var(--warn-ground); }}
.summary > p {{ font-size: 1.08rem; margin: .8rem 0; }}
.summary > .byline {{ color: var(--faint); font-size: .9rem; margin: -.6rem 0 1rem; }}
.noise {{ background: var(--warn-ground); border-left: .4rem solid var(--warn); border-radius: .4rem;
    list-style: none; margin: .8rem 0; padding: .6rem 1rem; }}
.swipe {{ display: none; }}
.scroll {{ overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; }}
.scroll:focus-visible {{ outline: 2px solid var(--c0); }}
table {{ border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .35rem .7rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }}
thead th {{ background: var(--raised); border-top: 0; font-weight: 600; vertical-align: bottom; }}
th[scope=row], .name {{ text-align: left; font-weight: 400; }}
th[scope=row] {{ position: sticky; left: 0; background: var(--paper); overflow-wrap: break-word; }}
tr.wrong td, tr.wrong th {{ color: var(--bad); background: var(--bad-ground); font-weight: 600; }}
.note, figcaption {{ color: var(--faint); font-size: .88rem; margin: .4rem 0; }}
.figures {{ display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }}
figure {{ margin: 0; padding: 1rem; border: 1px solid var(--line); border-radius: .4rem; min-width: 0; }}
svg {{ display: block; width: 100%; max-width: 34rem; height: auto; margin: 0 auto; }}
svg * {{ stroke-linejoin: round; stroke-linecap: butt; }}
summary {{ cursor: pointer; font-size: .88rem; }}
details .scroll {{ margin-top: .5rem; max-height: 20rem; overflow-y: auto; }}
dl {{ display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; font-size: .9rem; margin: 0; }}
dt {{ color: var(--faint); }}
dd {{ margin: 0; }}
@media (max-width: 480px) {{
    .swipe {{ color: var(--faint); display: block; font-size: .85rem; margin: .2rem 0; }}
    main {{ padding: .75rem; }}
    figure {{ padding: .6rem; }}
    table {{ font-size: .85rem; }}
    th, td {{ padding: .35rem .4rem; }}
    th[scope=row] {{ white-space: normal; min-width: 7.5rem; max-width: 9rem; }}
}}
@media print {{ .scroll {{ overflow: visible; }} figure {{ break-inside: avoid; }} }}
"""


def render_page(report: Mapping[str, Any]) -> str:
    """The content of `report.html`; equal reports give equal bytes."""
    title = heading_of(report)
    body = [_summary(title, byline_of(report), summarize(report))]
    body += [_section(_table(table), table.title, table.note) for table in tables_of(report)[:1]]
    if figures := figures_of(report):
        body.append(_section(f'<div class="figures">\n{_joined(map(_figure, figures))}\n</div>', "Figures"))
    body += [_section(_table(table), table.title, table.note) for table in tables_of(report)[1:]]
    listed = "\n".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in conditions_of(report))
    body.append(_section(f"<dl>\n{listed}\n</dl>", "Measured"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{_joined(body)}
</main>
</body>
</html>
"""


def _joined(parts: Any) -> str:
    return "\n".join(parts)


def _summary(title: str, byline: str, summary: Summary) -> str:
    details = summary.details
    listed = f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in details)}</ul>" if len(details) > 1 else ""
    listed = listed or "".join(f"<p>{escape(line)}</p>" for line in details)
    alert = ' role="alert"' if summary.state == "lossy" else ""
    sentences = _joined(f"<p>{escape(line)}</p>" for line in summary.sentences)
    if summary.noise:
        sentences += f'\n<ul class="noise">{"".join(f"<li>{escape(line)}</li>" for line in summary.noise)}</ul>'
    verdict = f'<div class="verdict {summary.state}"{alert}><strong>{escape(summary.headline)}</strong>{listed}</div>'
    # The speed of a lossy decoder is no advice: the verdict comes first.
    content = f"{verdict}\n{sentences}" if summary.state == "lossy" else f"{sentences}\n{verdict}"
    heading = f'<h1>{escape(title)}</h1>\n<p class="byline">{escape(byline)}</p>'
    return f'<header class="summary">\n{heading}\n{content}\n</header>'


def _section(content: str, title: str, note: str = "") -> str:
    caption = f'\n<p class="note">{escape(note)}</p>' if note else ""
    return f"<section>\n<h2>{escape(title)}</h2>{caption}\n{content}\n</section>"


def _table(table: ReportTable) -> str:
    head = "".join(
        f'<th scope="col"{_name(index, table)}>{escape(heading)}</th>' for index, heading in enumerate(table.headings)
    )
    rows = []
    for index, cells in enumerate(table.cells):
        first = f'<th scope="row">{escape(cells[0])}</th>'
        rest = "".join(f"<td{_name(column, table)}>{escape(cell)}</td>" for column, cell in enumerate(cells) if column)
        mark = ' class="wrong"' if index in table.flagged else ""
        rows.append(f"<tr{mark}>{first}{rest}</tr>")
    label = escape(table.title)
    swipe = '<p class="swipe">Swipe the table sideways.</p>\n' if len(table.headings) > PHONE_COLUMNS else ""
    return f"""{swipe}<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{_joined(rows)}
</tbody>
</table></div>"""


def _name(column: int, table: ReportTable) -> str:
    return ' class="name"' if column < table.name_columns else ""


def _figure(figure: Figure) -> str:
    key = f"figure-{figure.key}"
    labelled = f'<svg role="img" aria-labelledby="{key}-title {key}-alt"'
    words = f'<title id="{key}-title">{escape(figure.title)}</title><desc id="{key}-alt">{escape(figure.alt)}</desc>'
    start, end = figure.svg.split(">", 1)
    svg = f"{start.replace('<svg', labelled, 1)}>{words}{end}"
    numbers = f"<details><summary>Numbers</summary>{_table(figure.table)}</details>"
    return f"""<figure>
<h3>{escape(figure.title)}</h3>
{svg}
<figcaption>{escape(figure.alt)}</figcaption>
{numbers}
</figure>"""
