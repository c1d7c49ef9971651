"""Collects the rows of reports that the papers' tables need: greedy decoding, one request at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drafterforge.data.questions import SPEC_BENCH
from drafterforge.errors import ArtifactError
from drafterforge.reporting.reader import count, curves_of, is_live, mapping, number, records, rows_of, text

STATIC, NONE = "static", "none"
GENERALIST = "general"
EXPERT = "the domain's expert"  # method name in reports: a drafter for each request
BEST_STATIC = "best static tree"  # prefix of a method name in reports
FIGURES = ("mat", "tokens_per_s", "speedup", "accept_rate")
POOL_SIZE = "pool size"  # axis of `curves.scaling`
Report = Mapping[str, Any]


@dataclass(frozen=True)
class MeasuredRow:
    """Figures of a method on a domain."""

    method: str
    selector: str  # none: plain decoding or another program
    schedule: str  # policy that chooses the trees; static: one tree
    drafter: str  # the only drafter; the method, if selector is none; empty: a selector chooses
    domain: str
    prompts: int
    tokens: int
    cycles: int
    live: bool
    report: int  # index of its report
    figures: dict[str, float]


@dataclass(frozen=True)
class Evidence:
    """Rows of reports of one target on one device."""

    about: str  # target, device, dtype
    reports: int  # number of reports
    generalist: str  # name of the drafter trained on all domains
    rows: list[MeasuredRow]
    pool: list[str]  # drafters among which selectors choose
    actions: dict[str, float]  # schedule -> number of different trees
    scaling: dict[tuple[str, int], tuple[float, bool]]  # selector, number of drafters -> MAT, whether it was replayed
    left_out: int  # number of rows that were sampled or decoded in batches

    @property
    def domains(self) -> set[str]:
        """Domains and benchmarks with any row."""
        return {row.domain for row in self.rows}


def gather(reports: Sequence[Report], generalist: str = GENERALIST) -> Evidence:
    """Collect all rows of the reports; ArtifactError if they are of several targets, devices or dtypes."""
    about = list(dict.fromkeys(_about(report) for report in reports))
    if len(about) != 1:
        raise ArtifactError(
            f"the reports are of {' and of '.join(about)}; give reports of one target, device and dtype"
        )
    all_rows = [row for report in reports for row in rows_of(report)]
    rows: list[MeasuredRow] = []
    for index, report in enumerate(reports):
        measured = [_measured(row, index) for row in rows_of(report) if _is_plain(row) and not row.get("axis")]
        rows += measured + _spec_bench(measured) + _by_domain(report, index)
    pools = [[text(name) for name in names] for row in all_rows if isinstance(names := row.get("drafters"), list)]
    return Evidence(
        about=about[0],
        reports=len(reports),
        generalist=generalist,
        rows=rows,
        pool=max(pools, key=len, default=[]),
        actions=_actions(reports),
        scaling=_scaling(reports),
        left_out=len(all_rows) - sum(_is_plain(row) for row in all_rows),
    )


def _about(report: Report) -> str:
    target = mapping(report.get("target")).get("name", report.get("target"))
    parts = [text(value) for value in (target, report.get("device"), report.get("dtype"))]
    return ", ".join(value or "not stated" for value in parts)


def _is_plain(row: Mapping[str, Any]) -> bool:
    """Whether the row was decoded greedily, one request at a time; replayed rows were."""
    return not number(row.get("temperature")) and number(row.get("batch_size")) in (None, 1)


def _measured(row: Mapping[str, Any], report: int) -> MeasuredRow:
    method, selector = text(row.get("method")), text(row.get("selector")) or NONE
    schedule = schedule_of(method, text(row.get("scheduler")))
    figures = {key: number(row.get(key)) for key in FIGURES}
    return MeasuredRow(
        method=method,
        selector=selector,
        schedule=schedule,
        drafter=_alone(method, selector, row.get("drafters")),
        domain=text(row.get("domain")),
        prompts=count(row.get("num_prompts")),
        tokens=count(row.get("num_tokens")),
        cycles=count(row.get("num_cycles")),
        live=is_live(row),
        report=report,
        figures={key: value for key, value in figures.items() if value is not None},
    )


def schedule_of(method: str, scheduler: str = "") -> str:
    """Name of the policy that chooses trees."""
    if match := re.match(r"policy (\S+)", method):
        return match[1]
    return BEST_STATIC if method.startswith(BEST_STATIC) else scheduler or STATIC


def _alone(method: str, selector: str, drafters: Any) -> str:
    if selector == NONE:
        return method
    if selector != STATIC:
        return ""
    if method.startswith(EXPERT):
        return EXPERT
    if " alone" in method:
        return method.partition(" alone")[0]
    return text(drafters[0]) if isinstance(drafters, list) and len(drafters) == 1 else ""


def _by_domain(report: Report, report_index: int) -> list[MeasuredRow]:
    """MAT of each drafter alone by domain, from the curve of suites of several domains."""
    return [
        MeasuredRow(
            f"{drafter} alone", STATIC, STATIC, text(drafter), text(domain), 0, 0, 0, False, report_index, {"mat": mat}
        )
        for domain, drafters in mapping(curves_of(report).get("mat_by_domain")).items()
        for drafter, value in mapping(drafters).items()
        if (mat := number(value)) is not None
    ]


def _spec_bench(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Rows of Spec-Bench in total, for methods that decoded all of its groups."""
    totals = []
    for method, live in dict.fromkeys((row.method, row.live) for row in rows):
        groups = {row.domain: row for row in rows if (row.method, row.live) == (method, live) and row.cycles}
        parts = [groups[name] for group in SPEC_BENCH if (name := f"spec_bench/{group}") in groups]
        if len(parts) < len(SPEC_BENCH):
            continue
        first, tokens, cycles = parts[0], sum(part.tokens for part in parts), sum(part.cycles for part in parts)
        figures = {}
        if all("mat" in part.figures for part in parts):
            figures["mat"] = sum(part.figures["mat"] * part.cycles for part in parts) / cycles
        if all(part.figures.get("tokens_per_s") for part in parts):
            figures["tokens_per_s"] = tokens / sum(part.tokens / part.figures["tokens_per_s"] for part in parts)
        names = (method, first.selector, first.schedule, first.drafter, "spec_bench")
        totals.append(
            MeasuredRow(*names, sum(part.prompts for part in parts), tokens, cycles, live, first.report, figures)
        )
    return totals


def _actions(reports: Sequence[Report]) -> dict[str, float]:
    replayed = [row for report in reports for row in records(curves_of(report).get("replayed"))]
    counts = {schedule_of(text(row.get("name"))): number(row.get("actions")) for row in reversed(replayed)}
    return {name: value for name, value in counts.items() if value is not None}


def _scaling(reports: Sequence[Report]) -> dict[tuple[str, int], tuple[float, bool]]:
    """MAT by selector and pool size.  Replayed figures come first, because they average over pools of one size."""
    points = [row for report in reports for row in rows_of(report) if row.get("axis") == POOL_SIZE and _is_plain(row)]
    points += [
        point for report in reports for point in records(mapping(curves_of(report).get("scaling")).get(POOL_SIZE))
    ]
    points.sort(key=lambda point: " over the pool" in text(point.get("method")))
    scaling: dict[tuple[str, int], tuple[float, bool]] = {}
    for point in points:
        mat, (selector, live, _) = number(point.get("mat")), text(point.get("method")).partition(" over the pool")
        if mat is not None and count(point.get("at")):
            scaling.setdefault((selector, count(point.get("at"))), (mat, not (live or is_live(point))))
    return scaling
