"""Our figures in the form of the papers' tables.

A cell without a report has a mark, and the table says for which reason; without a reason it stays empty and is counted.
A row with such a cell has no mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from drafterforge.reporting.papers.cells import Cell, Reason, Reasons, filled_cell, mean_of
from drafterforge.reporting.papers.evidence import GENERALIST, Evidence, gather
from drafterforge.reporting.papers.form import FIGURES, Form, Line
from drafterforge.reporting.papers.forms import FORMS
from drafterforge.reporting.papers.points import Point
from drafterforge.reporting.papers.policy_steps import EAGLE_TREES, SAMPLED
from drafterforge.reporting.papers.rows import BEST_STATIC, STATIC, MeasuredRow, Report
from drafterforge.reporting.report_table import ReportTable, format_number

MEAN = "mean"
SHOWN_TREES = ("resps", "ltd", "ltd_sampled", "ltd_ablation", "ltd_rewards", "over_best")
SIZES = (1, 2, 4, 8)  # pool sizes, if no report has any
NEVER = "does not apply"
NOT_AVERAGED = (
    "scaling",
    "many_drafters",
    "router",
    "metasd_signal",
    "resps_caching",
    "sampled",
    "over_best",
    "priced",
)  # columns differ in kind
NOTHING = ReportTable("", [], [])


@dataclass(frozen=True)
class PaperTable:
    """Our figures in the form of a paper's table."""

    form: Form
    ours: ReportTable
    all_cells: list[Cell] = field(default_factory=list)  # without means
    device: str = ""  # in the page's title
    trees: dict[str, list[Point]] = field(default_factory=dict)  # numbers of trees that policies used, by method

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
    def prompts(self) -> str:
        """How many prompts are behind a cell, most columns first; empty if the reports do not say."""
        kinds: dict[str, dict[int, list[str]]] = {"replayed": {}, "timed": {}}
        for cell in self.all_cells:
            if isinstance(cell.source, MeasuredRow) and cell.source.prompts:
                by_count = kinds["timed" if cell.source.live else "replayed"]
                by_count.setdefault(cell.source.prompts, []).append(cell.column)
        parts = []
        for kind, by_count in kinds.items():
            counts = sorted(by_count, key=lambda count: -len(by_count[count]))
            names = [f"{count} in {', '.join(dict.fromkeys(by_count[count]))}" for count in counts[1:]]
            fewer = f" ({', '.join(names)})" if names else ""
            parts += [f"{counts[0]} {kind}{fewer}"] if counts else []
        return f"Prompts behind a cell: {'; '.join(parts)}." if parts else ""

    @property
    def trees_used(self) -> str:
        """How many trees each policy used; empty without policies."""
        counts = {
            name: ", ".join(dict.fromkeys(format_number(point.value, ".0f") for point in points))
            for name, points in self.trees.items()
        }
        listed = "; ".join(f"{name} {count}" for name, count in counts.items())
        return f"Trees that a policy used in its replay: {listed}. With one, it is a fixed tree." if counts else ""

    @property
    def reduced(self) -> str:
        """What is smaller than in the paper; empty if nothing is."""
        sizes = ", ".join(map(str, self.form.reductions))
        return sizes and f"Smaller than in the paper, so that two cores finish in hours: {sizes}."

    @property
    def seconds(self) -> str:
        """The device of the figures' seconds; empty if it is the one in the page's title."""
        columns: dict[str, dict[str, list[str]]] = {}  # of each method, by device
        for cell in self.all_cells:
            if cell.device:
                columns.setdefault(cell.device, {}).setdefault(cell.method, []).append(cell.column)
        if columns.keys() <= {self.device}:
            return ""
        if len(columns) == 1:
            return f"Seconds are of {next(iter(columns))}."
        devices_of = Counter(method for methods in columns.values() for method in methods)
        parts = []
        for device, methods in columns.items():
            names = []
            for method, of_device in methods.items():
                titles = ", ".join(f"`{title}`" for title in dict.fromkeys(of_device))
                names.append(f"{method} ({titles})" if devices_of[method] > 1 else method)
            parts.append(f"{', '.join(names)}: {device}")
        return f"Methods were timed on several devices; compare only those of one. {'; '.join(parts)}."

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
        [filled_cell(evidence, form, line, figure, *column, reasons) for column in columns.items()]
        for line in form.lines
        for figure in line.figures or form.figures
    ]
    cells = [cell for row in rows for cell in row]
    marks = {reason: mark(index) for index, reason in enumerate(PaperTable(form, NOTHING, cells).reasons)}
    lines = []
    for row in rows:
        name = FIGURES[row[0].figure][0]
        printed = [cell.printed if cell.value is not None else marks.get(cell.reason, "") for cell in row]
        mean = [mean_of(row).printed] if averaged else []
        lines.append([row[0].method, name, *printed, *mean])
    mean = [MEAN] if averaged else []
    ours = ReportTable(form.title, ["method", "figure", *headings, *mean], lines, name_columns=2, note=form.caption)
    return PaperTable(form, ours, cells, evidence.device, _trees(form, evidence))


def _trees(form: Form, evidence: Evidence) -> dict[str, list[Point]]:
    """The numbers of trees that the policies of a form used in replays on a CPU, by method; see `PaperTable`."""
    if form.key not in SHOWN_TREES:
        return {}
    ends = ("", *(f"-t{temperature:g}" for temperature in SAMPLED)) if form.key == "over_best" else ("",)
    policies = [line for line in form.lines if line.schedule not in (STATIC, *EAGLE_TREES.values())]
    points = {
        line.name: [point for end in ends if (point := evidence.actions.get(f"{line.schedule}{end}"))]
        for line in policies
        if not line.schedule.startswith(BEST_STATIC)
    }
    return {name: of_policy for name, of_policy in points.items() if of_policy}


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
