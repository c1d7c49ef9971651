"""The cells of our tables: the row or curve of a report that fills each, or the reason why none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import stdev

from drafterforge.config.evaluation import ALL
from drafterforge.reporting.papers.evidence import Evidence
from drafterforge.reporting.papers.form import BEST_ALONE, FIGURES, GENERALIST_ALONE, UNTIMED, Form, Line
from drafterforge.reporting.papers.points import Point
from drafterforge.reporting.papers.policy_forms import RESPS_COLUMNS
from drafterforge.reporting.papers.policy_steps import EAGLE_TREES
from drafterforge.reporting.papers.rows import EXPERT, MeasuredRow
from drafterforge.reporting.report_table import format_number

MMLU, NUM_TASKS = "mmlu_", 57  # beginning of the names of question files, and their number
POINTS = (
    "scaling",
    "many_drafters",
    "router",
    "metasd_signal",
    "priced",
    "over_best",
)  # forms that are not filled from rows
RESPS_DOMAINS = tuple(domain for (domain,) in RESPS_COLUMNS.values())


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
    device: str = ""  # on whose seconds the value depends; empty: on none
    agrees: bool = True  # of a signal strength: see `Point`

    @property
    def printed(self) -> str:
        """The value with its spread; empty without a value."""
        _, *style = FIGURES[self.figure]
        spread = "" if self.deviation is None else f" ±{format_number(self.deviation, style[0])}"
        if self.interval is not None:
            spread = f" [{', '.join(format_number(bound, style[0]) for bound in self.interval)}]"
        printed = f"{format_number(self.value, *style)}{spread}"
        return printed if self.agrees else f"({printed})"


def filled_cell(
    evidence: Evidence, form: Form, line: Line, figure: str, column: str, domain: str, reasons: Sequence[Reason]
) -> Cell:
    cell = _filled(evidence, form, line, figure, column, domain)
    if cell.value is None:
        return replace(cell, reason=next((reason.why for reason in reasons if reason.explains(cell)), ""))
    return cell if figure in UNTIMED else replace(cell, device=evidence.devices[cell.source.report])


def _filled(evidence: Evidence, form: Form, line: Line, figure: str, column: str, domain: str) -> Cell:
    cell = Cell(line.name, figure, column)
    if form.key == "sampled":
        form, domain = replace(form, temperature=float(domain)), ALL
    if figure == "faster_tasks":
        if (tasks := _faster_tasks(evidence, form, line)) is not None:
            return replace(cell, value=tasks[0], source=tasks[1])
    elif form.key in POINTS or figure == "actions":
        point = _point(evidence, form, line, figure, domain)
        if point is not None:
            spread = {"deviation": point.deviation, "interval": point.interval, "agrees": point.agrees}
            return replace(cell, value=point.value, source=point, **spread)
    elif figure == "over_static":
        schedule = f"resps-hold{domain}" if form.key == "resps_caching" else line.schedule
        if (over := _over_default(evidence, form, replace(line, schedule=schedule))) is not None:
            ratios, source = over
            return replace(cell, value=_mean(ratios), source=source, deviation=_deviation(ratios))
    elif (row := best_row(evidence, form, line, figure, domain)) is not None:
        by_seed = tuple(figures[figure] for figures in row.by_seed if figure in figures)
        return replace(cell, value=row.figures[figure], source=row, deviation=_deviation(by_seed), by_seed=by_seed)
    return cell


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
    """Our row for a cell: of the first report that has one, preferably live as the form asks, with the most prompts.

    A report of the form's first method comes before others, so that methods are compared on the same prompts.
    """
    if line.drafter == BEST_ALONE:
        return _best_alone(evidence, form, line, figure, domain)
    rows = _rows(evidence, form, line, figure, domain)
    if line.drafter == EXPERT:  # experts have the names of their domains; compared on the generalist's prompts
        if domain not in evidence.pool:
            return None  # the generalist drafts
        generalist = _of(rows, evidence.generalist)
        rows = [row for row in rows if generalist is None or row.report == generalist.report]
        return next((row for row in rows if row.drafter in (EXPERT, domain)), None)
    return _of(rows, evidence.generalist if line.drafter == GENERALIST_ALONE else line.drafter)


def _rows(evidence: Evidence, form: Form, line: Line, figure: str, domain: str) -> list[MeasuredRow]:
    """Rows of a line's selector and schedule with the figure, best first; see `best_row`."""

    def matching(line: Line) -> list[MeasuredRow]:
        return [
            row
            for row in evidence.rows
            if (row.selector, row.schedule, row.domain) == (line.selector, line.schedule, domain)
            and figure in row.figures
            and row.temperature == form.temperature
        ]

    beside = {row.report for row in matching(form.lines[0])} if form.live and form.lines else set()
    return sorted(
        matching(line), key=lambda row: (row.report not in beside, row.report, row.live != form.live, -row.prompts)
    )


def _best_alone(evidence: Evidence, form: Form, line: Line, figure: str, domain: str) -> MeasuredRow | None:
    """The row of the drafter that is best alone in a column; the one with the largest MAT for figures of a cycle."""
    key = "mat" if figure == "accept_rate" else figure
    alone = [_of(_rows(evidence, form, line, key, domain), name) for name in evidence.pool]
    if len(alone) < 2 or None in alone:
        return None
    best = max(alone, key=lambda row: row.figures[key])
    return best if figure == key else _of(_rows(evidence, form, line, figure, domain), best.drafter)


def _of(rows: Sequence[MeasuredRow], drafter: str) -> MeasuredRow | None:
    return next((row for row in rows if row.drafter == drafter), None)


def mean_of(row: Sequence[Cell]) -> Cell:
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
