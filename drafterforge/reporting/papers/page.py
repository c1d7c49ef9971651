"""The page of the papers' tables, in Markdown and on a terminal: what holds, then ours beside the published ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isclose

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from drafterforge.reporting.markdown import markdown_table, plain
from drafterforge.reporting.papers.age import changed_drafters
from drafterforge.reporting.papers.cells import Cell
from drafterforge.reporting.papers.claims import CLAIMS, Claim, judge
from drafterforge.reporting.papers.evidence import Evidence
from drafterforge.reporting.papers.form import FIGURES
from drafterforge.reporting.papers.tables import PaperTable
from drafterforge.reporting.published import PublishedTable, published
from drafterforge.reporting.report_table import ReportTable, format_number

TITLE = "The papers' tables"
MIXED, EQUAL_TREES = "timed on two devices", "the same trees"  # verdicts of a claim
VERDICTS = (
    "Each claim compares two methods column by column: it holds in all columns, depends, or does not hold in any. It "
    "is too close to tell where every difference is smaller than the deviation over training seeds, or the 95 % "
    "interval contains the reference; policies that emit the same tokens a cycle in every column play the same trees, "
    "and differences of their speed are noise. Where figures are of so few prompts that columns cannot be compared, "
    "their means are. The table of a claim names the device of its seconds. "
    "`python scripts/papers_reports.py STEP` measures it again; `python scripts/papers_tables.py --check` lists the "
    "rows that are older than the code they describe, which may be all of a table. In commands, FOLDER and MMLU are "
    "folders of question files, and TREE is the best static tree that `train-policy` printed; the script fills them in."
)
NAME = re.compile(r"[^,:]+")  # of a paper, without its title
EARLIER_POOL = "Some figures were measured with an earlier pool: the drafters in the package are newer."
WARNING = (
    "Our figures are measured on the target named here. Published figures are of other models on other hardware: "
    "they show the size of the effects, and their absolute values must not be compared with ours. "
    "Seconds are of the device in the title, unless a table names another one. Each published table names its number "
    "and the version of the paper that we read, but no page: our sources are HTML, text and notes."
)


# --- published -----------------------------------------------------------------------------------


def published_table(table: PublishedTable) -> ReportTable:
    """The table as published; empty cells could not be read."""
    cells = [
        [row.method, FIGURES[row.figure][0], *(_printed(value, row.figure) for value in row.values)]
        for row in table.rows
    ]
    return ReportTable(
        f"Published: {source_of(table)}", ["method", "figure", *table.columns], cells, name_columns=2, note=table.note
    )


def source_of(table: PublishedTable) -> str:
    paper = published().papers[table.paper].name
    return f"{paper}: {table.table} ({table.version}); target {table.target}; {table.hardware}"


def _printed(value: float | None, figure: str) -> str:
    """A published value with its digits."""
    _, form, unit = FIGURES[figure]
    if value is not None and form != ".0f":
        form = ".3f" if f"{value:.3f}"[-1] != "0" or figure == "over_static" else ".2f"
    return format_number(value, form, unit)


# --- verdicts -------------------------------------------------------------------------------------


def verdict_table(tables: Sequence[PaperTable]) -> ReportTable:
    """The papers' claims, and what our figures say of them."""
    by_form = {table.form.key: table for table in tables}
    rows = []
    for claim in CLAIMS:
        cells = by_form[claim.form].all_cells
        values, references, mixed = _comparable(cells, claim)
        intervals = {cell.column: cell.interval for cell in cells if cell.method == claim.method and cell.interval}
        measured, verdict = judge(claim, values, references, _deviations(cells, claim), intervals)
        verdict = MIXED if mixed and not measured else EQUAL_TREES if _alike(cells, claim) else verdict
        steps = " ".join(by_form[claim.form].form.steps)
        rows.append([NAME.match(published().papers[claim.paper].name)[0], claim.text, measured, verdict, steps])
    return ReportTable("What holds", ["paper", "claim", "ours", "verdict", "step"], rows, name_columns=5)


def _alike(cells: Sequence[Cell], claim: Claim) -> bool:
    """Whether a claim about speed compares methods that emit the same tokens a cycle in every column."""
    if claim.figure != "speedup" or claim.method == claim.over:
        return False
    mat: dict[str, dict[str, float]] = {claim.method: {}, str(claim.over): {}}
    for cell in cells:
        if cell.figure == "mat" and cell.method in mat and cell.value is not None:
            mat[cell.method][cell.column] = cell.value
    pairs = [(value, mat[str(claim.over)].get(column, 0.0)) for column, value in mat[claim.method].items()]
    return bool(pairs) and all(isclose(*pair) for pair in pairs)


def _comparable(cells: Sequence[Cell], claim: Claim) -> tuple[dict[str, float], dict[str, float], set[str]]:
    """The figures of both methods by column, without columns in which they were timed on different devices; these.

    A reward that prefers another drafter than the best has signal strength 0; columns in which both do are left out.
    """
    measured = [cell for cell in cells if cell.figure == claim.figure and cell.value is not None]
    first, second = (
        {cell.column: cell for cell in measured if cell.method == name} for name in (claim.method, claim.over)
    )
    shared = first.keys() & second
    mixed = {name for name in shared if first[name].device != second[name].device}
    misled = {name for name in shared if not first[name].agrees and not second[name].agrees}
    values, references = (
        {name: cell.value * cell.agrees for name, cell in cells.items() if name not in mixed | misled}
        for cells in (first, second)
    )
    return values, references, mixed


def _deviations(cells: Sequence[Cell], claim: Claim) -> dict[str, float]:
    """By column, the larger deviation of the two methods over training seeds; without columns that have none."""
    bounds: dict[str, float] = {}
    for cell in cells:
        if cell.method in (claim.method, claim.over) and cell.figure == claim.figure and cell.deviation:
            bounds[cell.column] = max(cell.deviation, bounds.get(cell.column, 0.0))
    return bounds


# --- output ---------------------------------------------------------------------------------------


def render_papers(evidence: Evidence, tables: Sequence[PaperTable], drafters: Mapping[str, str] | None = None) -> str:
    """A Markdown file with what holds, and all tables: ours first, the published ones below.

    drafters: sha256 of the manifests of today's drafters by name; the page says if they are not those of the figures.
    """
    parts = [f"# {TITLE}: {plain(evidence.about)}", WARNING]
    parts += [source] if (source := provenance(evidence)) else []
    is_old = any(changed_drafters(parents, drafters or {}) for parents in evidence.parents)
    parts += [EARLIER_POOL] if is_old else []
    parts += ["## What holds", VERDICTS, markdown_table(verdict_table(tables))]
    for table in tables:
        commands = "\n".join(table.form.commands)
        parts += [f"## {table.form.title}", table.form.caption, table.reduced]
        parts += ["**Ours**", table.seconds, markdown_table(table.ours)]
        parts += [" ".join(filter(None, (table.trees_used, table.prompts, table.note)))]
        parts += [f"```bash\n{commands}\n```"] if table.missing and commands else []
        parts += ["\n".join(f"- {plain(line)}" for line in table.legend)]
        for publication in published().of_form(table.form.key):
            paper = published().papers[publication.paper]
            links = f"[Paper]({paper.address}), [source of the figures]({publication.read})"
            parts.append(f"**Published**: {source_of(publication)}. {links}. {publication.note}")
            parts += [markdown_table(published_table(publication))] if publication.rows else []
    return "\n\n".join(stripped for part in parts if (stripped := part.strip())) + "\n"


def print_papers(evidence: Evidence, tables: Sequence[PaperTable], console: Console) -> None:
    """Print the tables to a terminal."""
    console.print(f"{escape(evidence.about)}. {WARNING} {provenance(evidence)}")
    _print(verdict_table(tables), console, "bold")
    for table in tables:
        console.print()
        _print(table.ours, console, "bold")
        console.print(
            escape(" ".join(filter(None, (table.reduced, table.trees_used, table.prompts, table.note, table.seconds))))
        )
        for command in table.form.commands if table.missing else ():
            console.print(f"  {command}", soft_wrap=True, markup=False)
        for line in table.legend:
            console.print(f"  {line}", soft_wrap=True, markup=False)
        for publication in published().of_form(table.form.key):
            _print(published_table(publication), console, "dim")
            console.print(published().papers[publication.paper].address, soft_wrap=True, markup=False)


def provenance(evidence: Evidence) -> str:
    """The reports behind the cells, and the rows left out."""
    sentences = ""
    if evidence.reports > 1:
        sentences = (
            f"Each cell is from the first of {evidence.reports} reports that has it; "
            "compare only figures on the same prompts. "
        )
    if evidence.left_out:
        sentences += f"Rows left out because they were decoded in batches: {evidence.left_out}. "
    if evidence.tuned:
        sentences += (
            f"Rows left out because their selectors have constants tuned here, not the papers': {evidence.tuned}."
        )
    return sentences.strip()


def _print(table: ReportTable, console: Console, style: str) -> None:
    console.print(escape(table.title), style=style)
    if table.cells:
        drawn = Table()
        for column, heading in enumerate(table.headings):
            drawn.add_column(escape(heading), justify="left" if column < table.name_columns else "right")
        for row in table.cells:
            drawn.add_row(*map(escape, row))
        console.print(drawn)
    if table.note:
        console.print(escape(table.note))
