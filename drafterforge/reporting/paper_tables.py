"""Tables in the form of the papers: figures of our reports, and the published ones.

A cell without a report has a mark, and the table says for which reason; without a reason it stays empty and is counted.
A row with such a cell has no mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from statistics import stdev

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from drafterforge.evaluation.rows import ALL
from drafterforge.reporting.markdown import markdown_table, plain
from drafterforge.reporting.paper_claims import CLAIMS, Claim, judge
from drafterforge.reporting.paper_evidence import (
    EXPERT,
    GENERALIST,
    Evidence,
    MeasuredRow,
    Point,
    Report,
    gather,
)
from drafterforge.reporting.paper_forms import (
    BEST_ALONE,
    FIGURES,
    FORMS,
    GENERALIST_ALONE,
    RESPS_COLUMNS,
    Form,
    Line,
)
from drafterforge.reporting.paper_steps import EAGLE_TREES
from drafterforge.reporting.published import PublishedTable, published
from drafterforge.reporting.report_table import ReportTable, format_number

MEAN = "mean"
SIZES = (1, 2, 4, 8)  # pool sizes, if no report has any
TITLE = "The papers' tables"
VERDICTS = (
    "Each claim compares two methods column by column: it holds in all columns, depends, or does not hold in any. "
    "`python scripts/papers_reports.py STEP` measures it again; `python scripts/papers_tables.py --check` lists the "
    "rows that are older than the code they describe, which may be all of a table. In commands, FOLDER and MMLU are "
    "folders of question files, and TREE is the best static tree that `train-policy` printed; the script fills them in."
)
NEVER = "does not apply"
NOT_AVERAGED = (
    "scaling",
    "many_drafters",
    "router",
    "resps_caching",
    "sampled",
    "over_best",
    "priced",
)  # columns differ in kind
MMLU, NUM_TASKS = "mmlu_", 57  # beginning of the names of question files, and their number
POINTS = (
    "scaling",
    "many_drafters",
    "router",
    "metasd_signal",
    "priced",
    "over_best",
)  # forms that are not filled from rows
NAME = re.compile(r"[^,:]+")  # of a paper, without its title
RESPS_DOMAINS = tuple(domain for (domain,) in RESPS_COLUMNS.values())
NOTHING = ReportTable("", [], [])
WARNING = (
    "Our figures are measured on the target named here. Published figures are of other models on other hardware: "
    "they show the size of the effects, and their absolute values must not be compared with ours. "
    "Seconds are of the device in the title, unless a table names another one. Each published table names the version "
    "of the paper that was read, by the number of the table: what was read, HTML, text and notes, has no pages."
)


@dataclass(frozen=True)
class Reason:
    """Why cells have no figure.  The patterns are as of file names."""

    why: str  # such as `does not apply: ...` or `not measured: ...`
    method: str = "*"
    figure: str = "*"  # key in `FIGURES`
    column: str = "*"

    def explains(self, cell: Cell) -> bool:
        pairs = ((cell.method, self.method), (cell.figure, self.figure), (cell.column, self.column))
        return all(fnmatchcase(value, pattern) for value, pattern in pairs)


Reasons = Mapping[str, Sequence[Reason]]  # by the key of the form


@dataclass(frozen=True)
class Cell:
    """A cell of our table."""

    method: str
    figure: str
    column: str
    value: float | None = None
    source: MeasuredRow | Point | None = None
    reason: str = ""  # why there is no value
    deviation: float | None = None  # over training seeds
    interval: tuple[float, float] | None = None  # of 95 %
    by_seed: tuple[float, ...] = ()  # values of the training seeds, if there are several

    @property
    def printed(self) -> str:
        """The value with its spread; empty without a value."""
        _, *style = FIGURES[self.figure]
        spread = "" if self.deviation is None else f" ±{format_number(self.deviation, style[0])}"
        if self.interval is not None:
            spread = f" [{', '.join(format_number(bound, style[0]) for bound in self.interval)}]"
        return f"{format_number(self.value, *style)}{spread}"


@dataclass(frozen=True)
class PaperTable:
    """Our figures in the form of a paper's table."""

    form: Form
    ours: ReportTable
    all_cells: list[Cell] = field(default_factory=list)  # without means

    @property
    def cells(self) -> int:
        """The number of cells."""
        return len(self.all_cells)

    @property
    def missing(self) -> int:
        """The number of cells without a figure that could have one."""
        return sum(cell.value is None and not cell.reason.startswith(NEVER) for cell in self.all_cells)

    @property
    def unexplained(self) -> list[Cell]:
        """Cells with neither a figure nor a reason."""
        return [cell for cell in self.all_cells if cell.value is None and not cell.reason]

    @property
    def reasons(self) -> list[str]:
        """The reasons of this table, in the order of their marks."""
        return list(dict.fromkeys(cell.reason for cell in self.all_cells if cell.reason))

    @property
    def note(self) -> str:
        """The number of missing cells; the commands follow it."""
        replayed = sum(cell.source is not None and not cell.source.live for cell in self.all_cells)
        if not self.missing:
            measured = sum(cell.value is not None for cell in self.all_cells)
            count = f"All {measured}" if measured == self.cells else f"{measured} of {self.cells}"
            return f"{count} cells measured, {replayed} of them by exact replay."
        by_replay = f" ({replayed} of the others by exact replay)" if replayed else ""
        end = "; type:" if self.form.commands else "."
        return f"{self.missing} of {self.cells} cells not measured{by_replay}{end}"

    @property
    def reduced(self) -> str:
        """What is smaller than in the paper; empty if nothing is."""
        sizes = ", ".join(map(str, self.form.reductions))
        return sizes and f"Smaller than in the paper, so that two cores finish in hours: {sizes}."

    @property
    def legend(self) -> list[str]:
        """What the marks mean."""
        return [f"{mark(index)} {reason}" for index, reason in enumerate(self.reasons)]


def mark(index: int) -> str:
    """The mark of a reason in a cell."""
    return f"({chr(ord('a') + index)})"


def paper_tables(
    reports: Sequence[Report], generalist: str = GENERALIST, reasons: Reasons | None = None
) -> tuple[Evidence, list[PaperTable]]:
    """All forms, filled from the reports.  generalist: name of the drafter trained on all domains."""
    evidence = gather(reports, generalist)
    return evidence, [paper_table(form, evidence, (reasons or {}).get(form.key, ())) for form in FORMS]


def paper_table(form: Form, evidence: Evidence, reasons: Sequence[Reason] = ()) -> PaperTable:
    evidence = evidence.pools[form.pool] if form.pool else evidence
    form = completed(form, evidence)
    columns = {name: _measured_domain(domains, evidence) for name, domains in form.columns.items()}
    headings = [f"{name} ({domain})" if len(form.columns[name]) > 1 else name for name, domain in columns.items()]
    averaged = len(columns) > 1 and form.key not in NOT_AVERAGED
    rows = [
        [_cell(evidence, form, line, figure, *column, reasons) for column in columns.items()]
        for line in form.lines
        for figure in line.figures or form.figures
    ]
    cells = [cell for row in rows for cell in row]
    marks = {reason: mark(index) for index, reason in enumerate(PaperTable(form, NOTHING, cells).reasons)}
    lines = []
    for row in rows:
        name = FIGURES[row[0].figure][0]
        printed = [cell.printed if cell.value is not None else marks.get(cell.reason, "") for cell in row]
        mean = [_mean_of(row).printed] if averaged else []
        lines.append([row[0].method, name, *printed, *mean])
    mean = [MEAN] if averaged else []
    ours = ReportTable(form.title, ["method", "figure", *headings, *mean], lines, name_columns=2, note=form.caption)
    return PaperTable(form, ours, cells)


def completed(form: Form, evidence: Evidence) -> Form:
    """The form with lines and columns that depend on the reports: drafters, pool sizes, devices."""
    if form.key == "drafters":
        return replace(form, lines=tuple(Line(name, drafter=name) for name in evidence.pool or [evidence.generalist]))
    if form.key == "scaling":
        sizes = sorted({size for _, size in evidence.scaling}) or SIZES
        return replace(form, columns={f"N = {size}": (str(size),) for size in sizes})
    if form.key == "resps_ablation":
        return replace(form, columns={MEAN: (MEAN,)})
    if form.key == "priced":
        devices = list(dict.fromkeys(device for device, _ in evidence.priced)) or ["a device"]
        return replace(form, columns={device: (device,) for device in devices})
    return form


def _measured_domain(domains: Sequence[str], evidence: Evidence) -> str:
    """The first domain with any row, for all methods alike."""
    return next((domain for domain in domains if domain in evidence.domains), domains[0])


def _cell(
    evidence: Evidence, form: Form, line: Line, figure: str, column: str, domain: str, reasons: Sequence[Reason]
) -> Cell:
    cell = Cell(line.name, figure, column)
    if form.key == "sampled":
        form, domain = replace(form, temperature=float(domain)), ALL
    if figure == "faster_tasks":
        if (tasks := _faster_tasks(evidence, form, line)) is not None:
            return replace(cell, value=tasks[0], source=tasks[1])
    elif form.key in POINTS or figure == "actions":
        point = _point(evidence, form, line, figure, domain)
        if point is not None:
            return replace(cell, value=point.value, source=point, deviation=point.deviation, interval=point.interval)
    elif figure == "over_static":
        schedule = f"resps-hold{domain}" if form.key == "resps_caching" else line.schedule
        if (over := _over_default(evidence, form, replace(line, schedule=schedule))) is not None:
            ratios, source = over
            return replace(cell, value=_mean(ratios), source=source, deviation=_deviation(ratios))
    elif (row := best_row(evidence, form, line, figure, domain)) is not None:
        by_seed = tuple(figures[figure] for figures in row.by_seed if figure in figures)
        return replace(cell, value=row.figures[figure], source=row, deviation=_deviation(by_seed), by_seed=by_seed)
    return replace(cell, reason=next((reason.why for reason in reasons if reason.explains(cell)), ""))


def _point(evidence: Evidence, form: Form, line: Line, figure: str, column: str) -> Point | None:
    """The point of a form that is not filled from rows, or the number of trees of a policy."""
    if form.key in ("scaling", "many_drafters"):
        points = evidence.scaling_speed if figure == "tokens_per_s" else evidence.scaling
        return points.get((line.selector, int(column)))
    return {
        "router": lambda: evidence.router.get(column),
        "metasd_signal": lambda: evidence.signals.get((column, line.selector)),
        "priced": lambda: evidence.priced.get((column, line.schedule)),
        "over_best": lambda: evidence.over_best.get((column, line.schedule)),
    }.get(form.key, lambda: evidence.actions.get(line.schedule))()


def _over_default(evidence: Evidence, form: Form, line: Line) -> tuple[list[float], MeasuredRow] | None:
    """Tokens/s over those of the paper's default tree in the same report, mean of five benchmarks, by training seed."""
    pairs = []
    for domain in RESPS_DOMAINS:
        row = best_row(evidence, form, line, "tokens_per_s", domain)
        trees = [] if row is None else [each for each in evidence.rows if each.report == row.report]
        reference = replace(line, schedule=EAGLE_TREES["resps"])
        default = best_row(replace(evidence, rows=trees), form, reference, "tokens_per_s", domain)
        if row is None or default is None:
            return None
        pairs.append((row, default.figures["tokens_per_s"]))
    seeds = range(min(len(row.by_seed) for row, _ in pairs))
    by_seed = [[row.by_seed[seed]["tokens_per_s"] / rate for row, rate in pairs] for seed in seeds]
    by_seed = by_seed or [[row.figures["tokens_per_s"] / rate for row, rate in pairs]]
    return [sum(ratios) / len(ratios) for ratios in by_seed], pairs[0][0]


def _faster_tasks(evidence: Evidence, form: Form, line: Line) -> tuple[int, MeasuredRow] | None:
    """The number of MMLU's tasks on which a policy emits more tokens/s than EAGLE's default tree, if all were timed."""
    lines = line, replace(line, schedule=EAGLE_TREES["ltd"])
    tasks = sorted(domain for domain in evidence.domains if domain.startswith(MMLU))
    pairs = [[best_row(evidence, form, part, "tokens_per_s", task) for part in lines] for task in tasks]
    if len(pairs) != NUM_TASKS or any(None in pair for pair in pairs):
        return None
    rates = [[row.figures["tokens_per_s"] for row in pair] for pair in pairs]
    return sum(policy > default for policy, default in rates), pairs[0][0]


def best_row(evidence: Evidence, form: Form, line: Line, figure: str, domain: str) -> MeasuredRow | None:
    """Our row for a cell: of the first report that has one, preferably live as the form asks, with the most prompts."""
    rows = [
        row
        for row in evidence.rows
        if (row.selector, row.schedule, row.domain) == (line.selector, line.schedule, domain)
        and figure in row.figures
        and row.temperature == form.temperature
    ]
    rows.sort(key=lambda row: (row.report, row.live != form.live, -row.prompts))
    if line.drafter == BEST_ALONE:
        alone = [_of(rows, name) for name in evidence.pool]
        return max(alone, key=lambda row: row.figures[figure]) if len(alone) > 1 and None not in alone else None
    if line.drafter == EXPERT:
        return _of(rows, EXPERT) or _of(rows, domain)  # experts have the names of their domains
    return _of(rows, evidence.generalist if line.drafter == GENERALIST_ALONE else line.drafter)


def _of(rows: Sequence[MeasuredRow], drafter: str) -> MeasuredRow | None:
    return next((row for row in rows if row.drafter == drafter), None)


def _mean_of(row: Sequence[Cell]) -> Cell:
    """The mean of a row's cells; its deviation is that of the means of the training seeds."""
    seeds = zip(*(cell.by_seed for cell in row), strict=False)
    means = [sum(values) / len(values) for values in seeds]
    value = _mean([cell.value for cell in row])
    return replace(row[0], value=value, deviation=None if value is None else _deviation(means))


def _deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation over training seeds; None for one seed."""
    return stdev(values) if len(values) > 1 else None


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
        measured, verdict = judge(claim, *(_values(cells, claim, method) for method in (claim.method, claim.over)))
        steps = " ".join(by_form[claim.form].form.steps)
        rows.append([NAME.match(published().papers[claim.paper].name)[0], claim.text, measured, verdict, steps])
    return ReportTable("What holds", ["paper", "claim", "ours", "verdict", "step"], rows, name_columns=5)


def _values(cells: Sequence[Cell], claim: Claim, method: str) -> dict[str, float]:
    """A method's figures by column."""
    return {
        cell.column: cell.value
        for cell in cells
        if (cell.method, cell.figure) == (method, claim.figure) and cell.value is not None
    }


# --- output ---------------------------------------------------------------------------------------


def render_papers(evidence: Evidence, tables: Sequence[PaperTable]) -> str:
    """A Markdown file with what holds, and all tables: ours first, the published ones below."""
    parts = [f"# {TITLE}: {plain(evidence.about)}", WARNING]
    parts += [source] if (source := provenance(evidence)) else []
    parts += ["## What holds", VERDICTS, markdown_table(verdict_table(tables))]
    for table in tables:
        commands = "\n".join(table.form.commands)
        parts += [f"## {table.form.title}", table.form.caption, table.reduced]
        parts += ["**Ours**", markdown_table(table.ours), table.note]
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
        console.print(escape(" ".join(filter(None, (table.reduced, table.note)))))
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
        sentences += f"Left out: {evidence.left_out} rows that were decoded in batches. "
    if evidence.tuned:
        sentences += (
            f"Left out: {evidence.tuned} rows of selectors with constants tuned here, which are not the papers'."
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
