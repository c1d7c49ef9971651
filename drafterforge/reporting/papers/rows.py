"""Rows of reports as the papers' tables need them: one request at a time, policies of several seeds as one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drafterforge.config.evaluation import ALL
from drafterforge.config.names import parse_tree
from drafterforge.data.questions import SPEC_BENCH
from drafterforge.reporting.papers.policy_steps import EAGLE_TREES
from drafterforge.reporting.reader import count, curves_of, is_live, mapping, number, rows_of, temperature_of, text

STATIC, NONE, STREAM = "static", "none", "mixed"
EXPERT = "the domain's expert"  # method name in reports: a drafter for each request
BEST_STATIC = "best static tree"  # prefix of a method name in reports
FIGURES = ("mat", "tokens_per_s", "speedup", "accept_rate", "regret_cycles")
SEEDED = re.compile(r"(.+)-seed\d+")  # name of a policy of a further training seed
Report = Mapping[str, Any]


@dataclass(frozen=True)
class MeasuredRow:
    """Figures of a method on a domain; a stream has the domain `all`, or `ood` if its prompts are rephrased."""

    method: str
    selector: str  # none: plain decoding or another program
    schedule: str  # policy that chooses the trees, whatever its training seed; static: the device's tree
    drafter: str  # the only drafter; the method, if selector is none; empty: a selector chooses
    domain: str
    prompts: int
    tokens: int
    cycles: int
    live: bool
    report: int  # index of its report
    figures: dict[str, float]
    temperature: float = 0.0
    by_seed: tuple[dict[str, float], ...] = ()  # figures of a policy's training seeds, if there are several


def measured_rows(report: Report, index: int) -> list[MeasuredRow]:
    """The rows of a report that count.  index: of the report."""
    plain = [row for row in rows_of(report) if is_plain(row) and not is_tuned(row) and not row.get("axis")]
    measured = _with_seeds([_measured(row, index, text(report.get("suite"))) for row in plain])
    measured = _with_paper(measured)
    return measured + _spec_bench(measured) + _by_domain(report, index)


def best_static_of(paper: str) -> str:
    """The schedule of the best static tree of the grid of a paper's policies; each paper has another grid."""
    return f"{BEST_STATIC} of {paper}"


def _with_paper(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """The rows of a report, its best static tree named after the paper whose policies the report has."""
    papers = [paper for paper in EAGLE_TREES if any(row.schedule == paper for row in rows)]
    if len(papers) != 1:
        return list(rows)
    name = best_static_of(papers[0])
    return [replace(row, schedule=name) if row.schedule == BEST_STATIC else row for row in rows]


def is_plain(row: Mapping[str, Any]) -> bool:
    """Whether the row was decoded one request at a time; replayed rows were."""
    return number(row.get("batch_size")) in (None, 1)


def is_tuned(row: Mapping[str, Any]) -> bool:
    """Whether the selector's constants were tuned, so that it is not the paper's; a router's advice is no constant."""
    chooses = text(row.get("selector")) not in (NONE, STATIC, "oracle", "router")
    return chooses and bool(mapping(row.get("options")).keys() - {"prior"}) and not is_live(row)


def _measured(row: Mapping[str, Any], report: int, suite: str) -> MeasuredRow:
    method, selector = text(row.get("method")), text(row.get("selector")) or NONE
    schedule = schedule_of(method, text(row.get("scheduler")))
    figures = {key: number(row.get(key)) for key in FIGURES} | _step_figures(row)
    domain = text(row.get("domain"))
    return MeasuredRow(
        method=method,
        selector=selector,
        schedule=schedule,
        drafter=_alone(method, selector, row.get("drafters")),
        domain="ood" if suite == "ood" else ALL if domain == STREAM else domain,
        prompts=count(row.get("num_prompts")),
        tokens=count(row.get("num_tokens")),
        cycles=count(row.get("num_cycles")),
        live=is_live(row),
        report=report,
        figures={key: value for key, value in figures.items() if value is not None},
        temperature=number(row.get("temperature")) or 0.0,
    )


def _with_seeds(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """The rows of a report, those of one policy and several training seeds as one, with the means of their figures."""
    groups: dict[tuple, list[MeasuredRow]] = {}
    for row in rows:
        policy = seedless(row.schedule)
        key = row.selector, policy, row.drafter, row.domain, row.live, row.temperature
        alone = row.schedule in (NONE, STATIC, BEST_STATIC)
        groups.setdefault((*key, row.method if alone else ""), []).append(replace(row, schedule=policy))
    return [_mean_row(group) for group in groups.values()]


def _mean_row(rows: Sequence[MeasuredRow]) -> MeasuredRow:
    if len(rows) == 1:
        return rows[0]
    keys = [key for key in rows[0].figures if all(key in row.figures for row in rows)]
    figures = {key: sum(row.figures[key] for row in rows) / len(rows) for key in keys}
    return replace(rows[0], figures=figures, by_seed=tuple(row.figures for row in rows))


def seedless(policy: str) -> str:
    """The name of a policy without its training seed."""
    match = SEEDED.fullmatch(policy)
    return match[1] if match else policy


def _step_figures(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Milliseconds of steps a cycle, and shares of the time, in percent."""
    steps = {key: number(value) or 0.0 for key, value in mapping(row.get("time_s")).items()}
    cycles, total = count(row.get("num_cycles")), steps.get("total")
    if not cycles or not total or not steps.get("verify"):
        return {}
    overhead = sum(steps.get(key, 0.0) for key in ("draft", "select", "schedule", "host"))
    figures = {f"{key}_ms": 1000 * steps.get(key, 0.0) / cycles for key in ("verify", "draft", "select")}
    figures["schedule_of_total"] = 100 * steps.get("schedule", 0.0) / total
    shares = {f"{key}_of_overhead": steps.get(key, 0.0) for key in ("draft", "schedule", "host")}
    return figures | {key: 100 * value / overhead if overhead else None for key, value in shares.items()}


def schedule_of(method: str, scheduler: str = "") -> str:
    """Name of the policy that chooses trees; a tree that a paper calls EAGLE's has its numbers as its name."""
    if match := re.match(r"policy (\S+)", method):
        return match[1]
    if match := re.match(r"default tree (\S+)", method):
        return match[1] if match[1] in EAGLE_TREES.values() else STATIC
    tree = parse_tree(scheduler) is not None and scheduler not in EAGLE_TREES.values()
    return BEST_STATIC if tree or method.startswith(BEST_STATIC) else scheduler or STATIC


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
    row = MeasuredRow("", STATIC, STATIC, "", "", 0, 0, 0, False, report_index, {}, temperature_of(rows_of(report)))
    return [
        replace(row, method=f"{drafter} alone", drafter=text(drafter), domain=text(domain), figures={"mat": mat})
        for domain, drafters in mapping(curves_of(report).get("mat_by_domain")).items()
        for drafter, value in mapping(drafters).items()
        if (mat := number(value)) is not None
    ]


def _spec_bench(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Rows of Spec-Bench in total, for methods that decoded all of its groups."""
    totals = []
    for method, live, temperature in dict.fromkeys((row.method, row.live, row.temperature) for row in rows):
        alike = [row for row in rows if (row.method, row.live, row.temperature) == (method, live, temperature)]
        groups = {row.domain: row for row in alike if row.cycles}
        parts = [groups[name] for group in SPEC_BENCH if (name := f"spec_bench/{group}") in groups]
        if len(parts) < len(SPEC_BENCH):
            continue
        first, tokens, cycles = parts[0], sum(part.tokens for part in parts), sum(part.cycles for part in parts)
        figures = {}
        if all("mat" in part.figures for part in parts):
            figures["mat"] = sum(part.figures["mat"] * part.cycles for part in parts) / cycles
        if all(part.figures.get("tokens_per_s") for part in parts):
            figures["tokens_per_s"] = tokens / sum(part.tokens / part.figures["tokens_per_s"] for part in parts)
        prompts = sum(part.prompts for part in parts)
        total = replace(first, domain="spec_bench", prompts=prompts, tokens=tokens, cycles=cycles, figures=figures)
        totals.append(total)
    return totals
