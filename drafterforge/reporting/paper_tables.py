"""Tables in the form of the papers: our reports' figures, and the published ones of other models on other hardware.

A cell that no report holds stays empty and is counted; a mean is made of a whole row only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from drafterforge.reporting.markdown import markdown_table, plain
from drafterforge.reporting.paper_evidence import GENERALIST, STATIC, Evidence, Measured, Report, gather
from drafterforge.reporting.paper_forms import BEST, FIGURES, FORMS, ONE, RESPS_COLUMNS, Form, Line
from drafterforge.reporting.published import PublishedTable, published
from drafterforge.reporting.tables import TableOf, shown

MEAN = "mean"
SIZES = (1, 2, 4, 8)  # drafters of a pool, where no report says
TITLE = "The papers' tables"
WARNING = (
    "Ours are measured on the target named here. Published figures are of other models on other hardware: "
    "they show the form of each table and how large effects were, and are not to be beaten or missed."
)


@dataclass(frozen=True)
class PaperTable:
    """A table of ours, and those that papers published in this form."""

    form: Form
    ours: TableOf
    missing: int  # cells without a figure
    cells: int  # means not counted
    replayed: int  # cells that were replayed, not decoded with a clock

    @property
    def note(self) -> str:
        """What is missing; what to type follows."""
        if not self.missing:
            return f"All {self.cells} cells measured, {self.replayed} of them by exact replay."
        replayed = f" ({self.replayed} of the others by exact replay)" if self.replayed else ""
        return f"{self.missing} of {self.cells} cells not measured{replayed}; type:"


def paper_tables(reports: Sequence[Report], generalist: str = GENERALIST) -> tuple[Evidence, list[PaperTable]]:
    """Every form, filled with what the reports hold.  generalist: name of the drafter trained on all domains."""
    evidence = gather(reports, generalist)
    return evidence, [paper_table(form, evidence) for form in FORMS]


def paper_table(form: Form, evidence: Evidence) -> PaperTable:
    """One form."""
    form = completed(form, evidence)
    columns = {name: _known(domains, evidence) for name, domains in form.columns.items()}
    headings = [f"{name} ({domain})" if len(form.columns[name]) > 1 else name for name, domain in columns.items()]
    averaged = len(columns) > 1 and form.key != "scaling"
    cells, values, replayed = [], [], 0
    for line in form.lines:
        for figure in line.figures or form.figures:
            found = [_cell(evidence, form, line, figure, domain) for domain in columns.values()]
            row = [None if one is None else one[0] for one in found]
            replayed += sum(one is not None and one[1] for one in found)
            values += row
            mean = [_mean(row)] if averaged else []
            cells.append([line.name, FIGURES[figure][0], *(shown(one, *FIGURES[figure][1:]) for one in row + mean)])
    mean = [MEAN] if averaged else []
    ours = TableOf(form.title, ["method", "figure", *headings, *mean], cells, names=2, note=form.caption)
    return PaperTable(form, ours, values.count(None), len(values), replayed)


def completed(form: Form, evidence: Evidence) -> Form:
    """With the lines and columns that only the reports know: drafters, sizes of pools."""
    if form.key == "drafters":
        return replace(form, lines=tuple(Line(one, drafter=one) for one in evidence.pool or [evidence.generalist]))
    if form.key == "scaling":
        sizes = sorted({size for _, size in evidence.scaling}) or SIZES
        return replace(form, columns={f"N = {size}": (str(size),) for size in sizes})
    if form.key == "resps_ablation":
        return replace(form, columns={MEAN: (MEAN,)})
    return form


def _known(domains: Sequence[str], evidence: Evidence) -> str:
    """The first that anything is known of, for all methods alike."""
    return next((one for one in domains if one in evidence.domains), domains[0])


def _cell(evidence: Evidence, form: Form, line: Line, figure: str, column: str) -> tuple[float, bool] | None:
    """The figure, and whether it was replayed; None if no report holds it."""
    if form.key == "scaling":
        return evidence.scaling.get((line.selector, int(column)))
    if figure == "actions":
        used = evidence.actions.get(line.schedule)
        return None if used is None else (used, True)
    if figure == "over_static":
        lines = (line, replace(line, schedule=STATIC))
        rates = [[_rate(evidence, form, one, name) for (name,) in RESPS_COLUMNS.values()] for one in lines]
        ratio = _mean([a / b if a and b else None for a, b in zip(*rates, strict=True)])
        return None if ratio is None else (ratio, False)
    row = found(evidence, form, line, figure, column)
    return None if row is None else (row.figures[figure], not row.live)


def _rate(evidence: Evidence, form: Form, line: Line, domain: str) -> float | None:
    row = found(evidence, form, line, "tokens_per_s", domain)
    return None if row is None else row.figures["tokens_per_s"]


def found(evidence: Evidence, form: Form, line: Line, figure: str, domain: str) -> Measured | None:
    """Our row for a cell: of the first report that has one; there the form's kind, live or replayed, most prompts."""
    rows = [
        row
        for row in evidence.rows
        if (row.selector, row.schedule, row.domain) == (line.selector, line.schedule, domain) and figure in row.figures
    ]
    rows.sort(key=lambda row: (row.report, row.live != form.live, -row.prompts))
    if line.drafter == BEST:
        alone = [_of(rows, name) for name in evidence.pool]
        return max(alone, key=lambda row: row.figures[figure]) if len(alone) > 1 and None not in alone else None
    return _of(rows, evidence.generalist if line.drafter == ONE else line.drafter)


def _of(rows: Sequence[Measured], drafter: str) -> Measured | None:
    return next((row for row in rows if row.drafter == drafter), None)


def _mean(values: Sequence[float | None]) -> float | None:
    return None if None in values or not values else sum(values) / len(values)


# --- published -----------------------------------------------------------------------------------


def published_table(table: PublishedTable) -> TableOf:
    """As the paper has it; empty where nothing was to be read."""
    cells = [
        [row.method, FIGURES[row.figure][0], *(_printed(one, row.figure) for one in row.values)] for row in table.rows
    ]
    return TableOf(
        f"Published: {source_of(table)}", ["method", "figure", *table.columns], cells, names=2, note=table.note
    )


def source_of(table: PublishedTable) -> str:
    """Paper, table, target and hardware."""
    return f"{published().papers[table.paper].name}: {table.table}; target {table.target}; {table.hardware}"


def _printed(value: float | None, figure: str) -> str:
    """With the digits of the paper."""
    _, form, unit = FIGURES[figure]
    if value is not None and form != ".0f":
        form = ".3f" if f"{value:.3f}"[-1] != "0" or figure == "over_static" else ".2f"
    return shown(value, form, unit)


# --- shown ---------------------------------------------------------------------------------------


def render_papers(evidence: Evidence, tables: Sequence[PaperTable]) -> str:
    """One Markdown file with every table, ours first, what was published below."""
    parts = [f"# {TITLE}: {plain(evidence.about)}", WARNING]
    parts += [said] if (said := provenance(evidence)) else []
    for table in tables:
        commands = "\n".join(table.form.commands)
        parts += [f"## {table.form.title}", table.form.caption, "**Ours**", markdown_table(table.ours), table.note]
        parts += [f"```bash\n{commands}\n```"] if table.missing else []
        for one in published().beside(table.form.key):
            paper = published().papers[one.paper]
            parts.append(
                f"**Published**: {source_of(one)}. [Paper]({paper.address}), [read here]({one.read}). {one.note}"
            )
            parts += [markdown_table(published_table(one))] if one.rows else []
    return "\n\n".join(part.strip() for part in parts) + "\n"


def print_papers(evidence: Evidence, tables: Sequence[PaperTable], console: Console) -> None:
    """The same in a terminal."""
    console.print(f"{escape(evidence.about)}. {WARNING} {provenance(evidence)}")
    for table in tables:
        console.print()
        _print(table.ours, console, "bold")
        console.print(escape(table.note))
        for command in table.form.commands if table.missing else ():
            console.print(f"  {command}", soft_wrap=True, markup=False)
        for one in published().beside(table.form.key):
            _print(published_table(one), console, "dim")
            console.print(published().papers[one.paper].address, soft_wrap=True, markup=False)


def provenance(evidence: Evidence) -> str:
    """Where cells are from, and what is not shown."""
    said = ""
    if evidence.reports > 1:
        said = (
            f"Cells are those of the first of {evidence.reports} reports that holds them; "
            "only figures on the same prompts compare. "
        )
    if evidence.left_out:
        said += f"{evidence.left_out} rows that were sampled or decoded in batches are left out."
    return said.strip()


def _print(table: TableOf, console: Console, style: str) -> None:
    console.print(escape(table.title), style=style)
    if table.cells:
        drawn = Table()
        for place, heading in enumerate(table.headings):
            drawn.add_column(escape(heading), justify="left" if place < table.names else "right")
        for row in table.cells:
            drawn.add_row(*map(escape, row))
        console.print(drawn)
    if table.note:
        console.print(escape(table.note))
