"""What reports measured, as the papers' tables ask for it: greedy decoding, one request at a time."""

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
EXPERT = "the domain's expert"  # a drafter for each request, how reports call it
BEST_STATIC = "best static tree"  # likewise
FIGURES = ("mat", "tokens_per_s", "speedup", "accept_rate")
POOL_SIZE = "pool size"  # axis of `curves.scaling`
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """A method on a domain."""

    method: str
    selector: str  # none: nothing is drafted, or by another program
    schedule: str  # policy that chooses the trees; static: one tree
    drafter: str  # that drafts alone; the method, if nothing is drafted; empty: a selector's choice
    domain: str
    prompts: int
    tokens: int
    cycles: int
    live: bool
    report: int  # which of the reports
    figures: dict[str, float]


@dataclass(frozen=True)
class Evidence:
    """All that some reports of one target on one device hold."""

    about: str  # target, device, dtype
    reports: int
    generalist: str  # drafter that was trained on all domains
    rows: list[Measured]
    pool: list[str]  # the drafters among which selectors choose
    actions: dict[str, float]  # schedule -> how many different trees it chose
    scaling: dict[tuple[str, int], tuple[float, bool]]  # selector, drafters -> MAT, and whether it was replayed
    left_out: int  # rows that were sampled, or decoded in batches

    @property
    def domains(self) -> set[str]:
        """Domains and benchmarks of which anything is known."""
        return {row.domain for row in self.rows}


def gather(reports: Sequence[Report], generalist: str = GENERALIST) -> Evidence:
    """Everything in the reports; ArtifactError if they are of several targets or devices."""
    about = list(dict.fromkeys(_about(report) for report in reports))
    if len(about) != 1:
        raise ArtifactError(f"the reports are of {' and of '.join(about)}; give those of one target, device and dtype")
    every = [row for report in reports for row in rows_of(report)]
    rows: list[Measured] = []
    for place, report in enumerate(reports):
        own = [_measured(row, place) for row in rows_of(report) if _is_plain(row) and not row.get("axis")]
        rows += own + _spec_bench(own) + _by_domain(report, place)
    pools = [[text(name) for name in names] for row in every if isinstance(names := row.get("drafters"), list)]
    return Evidence(
        about=about[0],
        reports=len(reports),
        generalist=generalist,
        rows=rows,
        pool=max(pools, key=len, default=[]),
        actions=_actions(reports),
        scaling=_scaling(reports),
        left_out=len(every) - sum(_is_plain(row) for row in every),
    )


def _about(report: Report) -> str:
    target = mapping(report.get("target")).get("name", report.get("target"))
    parts = [text(one) for one in (target, report.get("device"), report.get("dtype"))]
    return ", ".join(one or "not stated" for one in parts)


def _is_plain(row: Mapping[str, Any]) -> bool:
    """Whether it was decoded greedily, one request at a time; what was replayed was."""
    return not number(row.get("temperature")) and number(row.get("batch_size")) in (None, 1)


def _measured(row: Mapping[str, Any], report: int) -> Measured:
    method, selector = text(row.get("method")), text(row.get("selector")) or NONE
    schedule = schedule_of(method, text(row.get("scheduler")))
    found = {key: number(row.get(key)) for key in FIGURES}
    return Measured(
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
        figures={key: value for key, value in found.items() if value is not None},
    )


def schedule_of(method: str, scheduler: str = "") -> str:
    """The policy that chooses trees, by the name it was trained under."""
    if found := re.match(r"policy (\S+)", method):
        return found[1]
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


def _by_domain(report: Report, place: int) -> list[Measured]:
    """MAT of every drafter alone by domain, as suites of several domains keep it."""
    return [
        Measured(f"{drafter} alone", STATIC, STATIC, text(drafter), text(domain), 0, 0, 0, False, place, {"mat": mat})
        for domain, drafters in mapping(curves_of(report).get("mat_by_domain")).items()
        for drafter, value in mapping(drafters).items()
        if (mat := number(value)) is not None
    ]


def _spec_bench(rows: Sequence[Measured]) -> list[Measured]:
    """Spec-Bench as a whole, of a report's methods that all six groups were decoded with."""
    whole = []
    for method, live in dict.fromkeys((row.method, row.live) for row in rows):
        groups = {row.domain: row for row in rows if (row.method, row.live) == (method, live) and row.cycles}
        parts = [groups[name] for group in SPEC_BENCH if (name := f"spec_bench/{group}") in groups]
        if len(parts) < len(SPEC_BENCH):
            continue
        first, tokens, cycles = parts[0], sum(one.tokens for one in parts), sum(one.cycles for one in parts)
        figures = {}
        if all("mat" in one.figures for one in parts):
            figures["mat"] = sum(one.figures["mat"] * one.cycles for one in parts) / cycles
        if all(one.figures.get("tokens_per_s") for one in parts):
            figures["tokens_per_s"] = tokens / sum(one.tokens / one.figures["tokens_per_s"] for one in parts)
        names = (method, first.selector, first.schedule, first.drafter, "spec_bench")
        whole.append(Measured(*names, sum(one.prompts for one in parts), tokens, cycles, live, first.report, figures))
    return whole


def _actions(reports: Sequence[Report]) -> dict[str, float]:
    replayed = [row for report in reports for row in records(curves_of(report).get("replayed"))]
    found = {schedule_of(text(row.get("name"))): number(row.get("actions")) for row in reversed(replayed)}
    return {name: value for name, value in found.items() if value is not None}


def _scaling(reports: Sequence[Report]) -> dict[tuple[str, int], tuple[float, bool]]:
    """From rows along the axis, and from the curve of it; replayed figures first: pools of a size there are many."""
    points = [row for report in reports for row in rows_of(report) if row.get("axis") == POOL_SIZE and _is_plain(row)]
    points += [one for report in reports for one in records(mapping(curves_of(report).get("scaling")).get(POOL_SIZE))]
    points.sort(key=lambda one: " over the pool" in text(one.get("method")))
    found: dict[tuple[str, int], tuple[float, bool]] = {}
    for one in points:
        mat, (selector, live, _) = number(one.get("mat")), text(one.get("method")).partition(" over the pool")
        if mat is not None and count(one.get("at")):
            found.setdefault((selector, count(one.get("at"))), (mat, not (live or is_live(one))))
    return found
