"""Tables in the form of the papers: figures of our reports, and the published ones.

A cell without a report stays empty and is counted; a row with an empty cell has no mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from drafterforge.reporting.markdown import markdown_table, plain
from drafterforge.reporting.paper_evidence import GENERALIST, STATIC, Evidence, MeasuredRow, Report, gather
from drafterforge.reporting.paper_forms import BEST_ALONE, FIGURES, FORMS, GENERALIST_ALONE, RESPS_COLUMNS, Form, Line
from drafterforge.reporting.published import PublishedTable, published
from drafterforge.reporting.report_table import ReportTable, format_number

MEAN = "mean"
SIZES = (1, 2, 4, 8)  # pool sizes, if no report has any
TITLE = "The papers' tables"
WARNING = (
    "Our figures are measured on the target named here. Published figures are of other models on other hardware: "
    "they show the size of the effects, and their absolute values must not be compared with ours."
)


@dataclass(frozen=True)
class PaperTable:
    """Our figures in the form of a paper's table."""

    form: Form
    ours: ReportTable
    missing: int  # cells without a figure
    cells: int  # without means
    replayed: int  # cells that were replayed, not timed

    @property
    def note(self) -> str:
        """The number of missing cells; the commands follow it."""
        if not self.missing:
            return f"All {self.cells} cells measured, {self.replayed} of them by exact replay."
        replayed = f" ({self.replayed} of the others by exact replay)" if self.replayed else ""
        return f"{self.missing} of {self.cells} cells not measured{replayed}; type:"


def paper_tables(reports: Sequence[Report], generalist: str = GENERALIST) -> tuple[Evidence, list[PaperTable]]:
    """All forms, filled from the reports.  generalist: name of the drafter trained on all domains."""
    evidence = gather(reports, generalist)
    return evidence, [paper_table(form, evidence) for form in FORMS]


def paper_table(form: Form, evidence: Evidence) -> PaperTable:
    form = completed(form, evidence)
    columns = {name: _measured_domain(domains, evidence) for name, domains in form.columns.items()}
    headings = [f"{name} ({domain})" if len(form.columns[name]) > 1 else name for name, domain in columns.items()]
    averaged = len(columns) > 1 and form.key != "scaling"
    cells, values, replayed = [], [], 0
    for line in form.lines:
        for figure in line.figures or form.figures:
            row = [_cell(evidence, form, line, figure, domain) for domain in columns.values()]
            figures = [None if cell is None else cell[0] for cell in row]
            replayed += sum(cell is not None and cell[1] for cell in row)
            values += figures
            means = [_mean(figures)] if averaged else []
            name, *style = FIGURES[figure]
            cells.append([line.name, name, *(format_number(value, *style) for value in figures + means)])
    mean = [MEAN] if averaged else []
    ours = ReportTable(form.title, ["method", "figure", *headings, *mean], cells, name_columns=2, note=form.caption)
    return PaperTable(form, ours, values.count(None), len(values), replayed)


def completed(form: Form, evidence: Evidence) -> Form:
    """The form with lines and columns that depend on the reports: drafters, pool sizes."""
    if form.key == "drafters":
        return replace(form, lines=tuple(Line(name, drafter=name) for name in evidence.pool or [evidence.generalist]))
    if form.key == "scaling":
        sizes = sorted({size for _, size in evidence.scaling}) or SIZES
        return replace(form, columns={f"N = {size}": (str(size),) for size in sizes})
    if form.key == "resps_ablation":
        return replace(form, columns={MEAN: (MEAN,)})
    return form


def _measured_domain(domains: Sequence[str], evidence: Evidence) -> str:
    """The first domain with any row, for all methods alike."""
    return next((domain for domain in domains if domain in evidence.domains), domains[0])


def _cell(evidence: Evidence, form: Form, line: Line, figure: str, column: str) -> tuple[float, bool] | None:
    """The figure, and whether it was replayed; None if no report has it."""
    if form.key == "scaling":
        return evidence.scaling.get((line.selector, int(column)))
    if figure == "actions":
        used = evidence.actions.get(line.schedule)
        return None if used is None else (used, True)
    if figure == "over_static":
        lines = (line, replace(line, schedule=STATIC))
        rates = [[_rate(evidence, form, line, name) for (name,) in RESPS_COLUMNS.values()] for line in lines]
        ratio = _mean([a / b if a and b else None for a, b in zip(*rates, strict=True)])
        return None if ratio is None else (ratio, False)
    row = best_row(evidence, form, line, figure, column)
    return None if row is None else (row.figures[figure], not row.live)


def _rate(evidence: Evidence, form: Form, line: Line, domain: str) -> float | None:
    row = best_row(evidence, form, line, "tokens_per_s", domain)
    return None if row is None else row.figures["tokens_per_s"]


def best_row(evidence: Evidence, form: Form, line: Line, figure: str, domain: str) -> MeasuredRow | None:
    """Our row for a cell: of the first report that has one, preferably live as the form asks, with the most prompts."""
    rows = [
        row
        for row in evidence.rows
        if (row.selector, row.schedule, row.domain) == (line.selector, line.schedule, domain) and figure in row.figures
    ]
    rows.sort(key=lambda row: (row.report, row.live != form.live, -row.prompts))
    if line.drafter == BEST_ALONE:
        alone = [_of(rows, name) for name in evidence.pool]
        return max(alone, key=lambda row: row.figures[figure]) if len(alone) > 1 and None not in alone else None
    return _of(rows, evidence.generalist if line.drafter == GENERALIST_ALONE else line.drafter)


def _of(rows: Sequence[MeasuredRow], drafter: str) -> MeasuredRow | None:
    return next((row for row in rows if row.drafter == drafter), None)


def _mean(values: Sequence[float | None]) -> float | None:
    return None if None in values or not values else sum(values) / len(values)


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
    return f"{published().papers[table.paper].name}: {table.table}; target {table.target}; {table.hardware}"


def _printed(value: float | None, figure: str) -> str:
    """A published value with its digits."""
    _, form, unit = FIGURES[figure]
    if value is not None and form != ".0f":
        form = ".3f" if f"{value:.3f}"[-1] != "0" or figure == "over_static" else ".2f"
    return format_number(value, form, unit)


# --- output ---------------------------------------------------------------------------------------


def render_papers(evidence: Evidence, tables: Sequence[PaperTable]) -> str:
    """A Markdown file with all tables, ours first, the published ones below."""
    parts = [f"# {TITLE}: {plain(evidence.about)}", WARNING]
    parts += [source] if (source := provenance(evidence)) else []
    for table in tables:
        commands = "\n".join(table.form.commands)
        parts += [f"## {table.form.title}", table.form.caption, "**Ours**", markdown_table(table.ours), table.note]
        parts += [f"```bash\n{commands}\n```"] if table.missing else []
        for publication in published().of_form(table.form.key):
            paper = published().papers[publication.paper]
            links = f"[Paper]({paper.address}), [source of the figures]({publication.read})"
            parts.append(f"**Published**: {source_of(publication)}. {links}. {publication.note}")
            parts += [markdown_table(published_table(publication))] if publication.rows else []
    return "\n\n".join(part.strip() for part in parts) + "\n"


def print_papers(evidence: Evidence, tables: Sequence[PaperTable], console: Console) -> None:
    """Print the tables to a terminal."""
    console.print(f"{escape(evidence.about)}. {WARNING} {provenance(evidence)}")
    for table in tables:
        console.print()
        _print(table.ours, console, "bold")
        console.print(escape(table.note))
        for command in table.form.commands if table.missing else ():
            console.print(f"  {command}", soft_wrap=True, markup=False)
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
        sentences += f"Left out: {evidence.left_out} rows that were sampled or decoded in batches."
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
