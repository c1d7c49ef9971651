"""Collects the rows and curves of reports that the papers' tables need, by the pool of their drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mode
from typing import Any

from drafterforge.errors import ArtifactError
from drafterforge.reporting.papers.points import (
    Point,
    over_best_points,
    priced_points,
    router_points,
    scaling_points,
    signal_points,
    tree_counts,
)
from drafterforge.reporting.papers.rows import MeasuredRow, Report, is_plain, is_tuned, measured_rows
from drafterforge.reporting.papers.selector_steps import SMALL_LM
from drafterforge.reporting.reader import is_live, mapping, rows_of, temperature_of, text

GENERALIST = "general"
UNKNOWN = "not stated"
SMALL_LMS, MANY_DRAFTERS = "small language models", "many drafters"  # pools trained for a table, see `_pool_of`
MOST_DRAFTERS = 24  # of the pool of the other tables


@dataclass(frozen=True)
class Evidence:
    """Rows of reports of one target."""

    about: str  # target, the device of most timed reports, dtype
    device: str  # of most timed reports; tables name others
    reports: int  # number of reports
    generalist: str  # name of the drafter trained on all domains
    rows: list[MeasuredRow]
    pool: list[str]  # drafters among which selectors choose
    actions: dict[str, Point]  # schedule -> number of different trees
    over_best: dict[tuple[str, str], Point]  # such as `T = 1, live`, schedule -> speed over the best static tree
    scaling: dict[tuple[str, int], Point]  # selector, number of drafters -> MAT
    scaling_speed: dict[tuple[str, int], Point]  # selector, number of drafters -> timed tokens/s
    router: dict[str, Point]  # wording of the prompts -> accuracy
    signals: dict[tuple[str, str], Point]  # domain, reward of bandits -> signal strength
    priced: dict[tuple[str, str], Point]  # device of a latency profile, schedule -> speed over no drafting
    left_out: int  # number of rows that were decoded in batches
    pools: dict[str, Evidence] = field(default_factory=dict)  # of reports on other pools, see `_pool_of`
    tuned: int = 0  # number of replayed rows with other constants than the papers'
    codes: list[Mapping[str, Any]] = field(default_factory=list)  # of each report; see `code_state`
    parents: list[Any] = field(default_factory=list)  # artifacts behind each report
    devices: list[str] = field(default_factory=list)  # of each report

    @property
    def domains(self) -> set[str]:
        """Domains and benchmarks with any row."""
        return {row.domain for row in self.rows}


def gather(reports: Sequence[Report], generalist: str = GENERALIST) -> Evidence:
    """Collect all rows of the reports; ArtifactError if they are of several targets or dtypes."""

    def of_pool(pool: str) -> list[Report]:
        """The reports, those of other pools without rows and curves."""
        return [report if _pool_of(report) == pool else {**report, "rows": [], "curves": {}} for report in reports]

    pools = {SMALL_LMS: f"{generalist}{SMALL_LM}", MANY_DRAFTERS: generalist}
    evidence = _gather(reports, of_pool(""), generalist)
    return replace(evidence, pools={pool: _gather(reports, of_pool(pool), name) for pool, name in pools.items()})


def _pool_of(report: Report) -> str:
    """The pool of a report's drafters, a key in `Evidence.pools`; empty: that of most tables."""
    names = {text(name) for row in rows_of(report) if isinstance(row.get("drafters"), list) for name in row["drafters"]}
    if names and all(name.endswith(SMALL_LM) for name in names):
        return SMALL_LMS
    return MANY_DRAFTERS if len(names) > MOST_DRAFTERS else ""


def _gather(all_reports: Sequence[Report], reports: Sequence[Report], generalist: str) -> Evidence:
    """The evidence of reports on one pool, which must be of the same target and dtype as all reports."""
    about = list(dict.fromkeys(parts for report in all_reports if UNKNOWN not in (parts := _about(report))))
    about = about or [_about(all_reports[0])]
    if len(about) != 1:
        raise ArtifactError(
            f"the reports are of {' and of '.join(map(', '.join, about))}; give reports of one target and dtype"
        )
    timed = [_device(report) for report in all_reports if any(map(is_live, rows_of(report)))]
    all_rows = [row for report in reports for row in rows_of(report)]
    rows: list[MeasuredRow] = []
    for index, report in enumerate(reports):
        rows += measured_rows(report, index)
    greedy = [report if not temperature_of(rows_of(report)) else {**report, "curves": {}} for report in reports]
    pools = [[text(name) for name in names] for row in all_rows if isinstance(names := row.get("drafters"), list)]
    target, dtype = about[0]
    devices = [_device(report) for report in all_reports]
    device = mode(timed or devices)
    return Evidence(
        about=", ".join((target, device, dtype)),
        device=device,
        reports=len(reports),
        generalist=generalist,
        rows=rows,
        pool=max(pools, key=len, default=[]),
        actions=tree_counts(reports),
        over_best=over_best_points(reports),
        scaling=scaling_points(greedy, "mat"),
        scaling_speed=scaling_points(greedy, "tokens_per_s"),
        router=router_points(reports),
        signals=signal_points(greedy),
        priced=priced_points(greedy),
        left_out=len(all_rows) - sum(is_plain(row) for row in all_rows),
        tuned=sum(map(is_tuned, all_rows)),
        codes=[mapping(report.get("code")) for report in reports],
        parents=[report.get("parents") for report in reports],
        devices=devices,
    )


def _about(report: Report) -> tuple[str, str]:
    target = mapping(report.get("target")).get("name", report.get("target"))
    return text(target) or UNKNOWN, text(report.get("dtype")) or UNKNOWN


def _device(report: Report) -> str:
    return text(report.get("device")) or UNKNOWN
