"""Collects the rows of reports that the papers' tables need: one request at a time, selectors untuned."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import stdev
from typing import Any

from drafterforge.config.names import parse_tree
from drafterforge.data.questions import SPEC_BENCH
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.rows import ALL
from drafterforge.reporting.paper_steps import EAGLE_TREES, SMALL_LM
from drafterforge.reporting.reader import count, curves_of, is_live, mapping, number, numbers, records, rows_of, text

STATIC, NONE, STREAM = "static", "none", "mixed"
GENERALIST = "general"
EXPERT = "the domain's expert"  # method name in reports: a drafter for each request
BEST_STATIC = "best static tree"  # prefix of a method name in reports
POLICIES = "policies"  # kind of an artifact
FIGURES = ("mat", "tokens_per_s", "speedup", "accept_rate", "regret_cycles")
NO_DRAFTING, FORESIGHT = "no drafting", "perfect foresight"  # names in `curves.replayed`
UNKNOWN = "not stated"
SMALL_LMS, MANY_DRAFTERS = "small language models", "many drafters"  # pools trained for a table, see `_pool_of`
MOST_DRAFTERS = 24  # of the pool of the other tables
POOL_SIZE = "pool size"  # axis of `curves.scaling`
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


@dataclass(frozen=True)
class Point:
    """A figure that is no row of a report, such as one point of a curve."""

    value: float
    live: bool
    report: int  # index of its report
    selector: str = STATIC
    schedule: str = STATIC
    deviation: float | None = None  # over training seeds
    interval: tuple[float, float] | None = None  # of 95 %


@dataclass(frozen=True)
class Evidence:
    """Rows of reports of one target on one device."""

    about: str  # target, device, dtype
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

    @property
    def domains(self) -> set[str]:
        """Domains and benchmarks with any row."""
        return {row.domain for row in self.rows}


def gather(reports: Sequence[Report], generalist: str = GENERALIST) -> Evidence:
    """Collect all rows of the reports; ArtifactError if they are of several targets, devices or dtypes."""

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
    """The evidence of reports on one pool, which must be of the same target and device as all reports."""
    about = list(dict.fromkeys(parts for report in all_reports if UNKNOWN not in (parts := _about(report))))
    about = about or [_about(all_reports[0])]
    timed = list(dict.fromkeys(_device(report) for report in all_reports if any(map(is_live, rows_of(report)))))
    if len(about) != 1 or len(timed) > 1:
        raise ArtifactError(
            f"the reports are of {' and of '.join(timed if len(about) == 1 else map(', '.join, about))}; "
            "give reports of one target and dtype, timed on one device"
        )
    all_rows = [row for report in reports for row in rows_of(report)]
    rows: list[MeasuredRow] = []
    for index, report in enumerate(reports):
        plain = [row for row in rows_of(report) if _is_plain(row) and not _is_tuned(row) and not row.get("axis")]
        measured = _with_seeds([_measured(row, index, text(report.get("suite"))) for row in plain])
        rows += measured + _spec_bench(measured) + _by_domain(report, index)
    greedy = [report if not _temperature(report) else {**report, "curves": {}} for report in reports]
    pools = [[text(name) for name in names] for row in all_rows if isinstance(names := row.get("drafters"), list)]
    target, dtype = about[0]
    device = (timed or [_device(report) for report in all_reports])[0]
    return Evidence(
        about=", ".join((target, device, dtype)),
        reports=len(reports),
        generalist=generalist,
        rows=rows,
        pool=max(pools, key=len, default=[]),
        actions=_actions(greedy),
        over_best=_over_best(reports),
        scaling=_scaling(greedy, "mat"),
        scaling_speed=_scaling(greedy, "tokens_per_s"),
        router=_router(reports),
        signals=_signals(greedy),
        priced=_priced(greedy),
        left_out=len(all_rows) - sum(_is_plain(row) for row in all_rows),
        tuned=sum(map(_is_tuned, all_rows)),
        codes=[mapping(report.get("code")) for report in reports],
        parents=[report.get("parents") for report in reports],
    )


def _temperature(report: Report) -> float:
    """The temperature of a report's answers."""
    return max((number(row.get("temperature")) or 0.0 for row in rows_of(report) if not row.get("axis")), default=0.0)


def _about(report: Report) -> tuple[str, str]:
    target = mapping(report.get("target")).get("name", report.get("target"))
    return text(target) or UNKNOWN, text(report.get("dtype")) or UNKNOWN


def _device(report: Report) -> str:
    return text(report.get("device")) or UNKNOWN


def _is_plain(row: Mapping[str, Any]) -> bool:
    """Whether the row was decoded one request at a time; replayed rows were."""
    return number(row.get("batch_size")) in (None, 1)


def _is_tuned(row: Mapping[str, Any]) -> bool:
    """Whether the selector's constants were tuned, so that it is not the paper's."""
    chooses = text(row.get("selector")) not in (NONE, STATIC, "oracle", "router")
    return chooses and bool(mapping(row.get("options"))) and not is_live(row)


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
        seedless = _seedless(row.schedule)
        key = row.selector, seedless, row.drafter, row.domain, row.live, row.temperature
        alone = row.schedule in (NONE, STATIC, BEST_STATIC)
        groups.setdefault((*key, row.method if alone else ""), []).append(replace(row, schedule=seedless))
    return [_mean_row(group) for group in groups.values()]


def _mean_row(rows: Sequence[MeasuredRow]) -> MeasuredRow:
    if len(rows) == 1:
        return rows[0]
    keys = [key for key in rows[0].figures if all(key in row.figures for row in rows)]
    figures = {key: sum(row.figures[key] for row in rows) / len(rows) for key in keys}
    return replace(rows[0], figures=figures, by_seed=tuple(row.figures for row in rows))


def _seedless(policy: str) -> str:
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
    row = MeasuredRow("", STATIC, STATIC, "", "", 0, 0, 0, False, report_index, {}, _temperature(report))
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


def _actions(reports: Sequence[Report]) -> dict[str, Point]:
    """The number of different trees of each policy, mean over its seeds, from the first report that has it."""
    actions: dict[str, Point] = {}
    for index, report in enumerate(reports):
        counts: dict[str, list[float]] = {}
        for row in records(curves_of(report).get("replayed")):
            schedule, value = schedule_of(text(row.get("name"))), number(row.get("actions"))
            if value is not None:
                counts.setdefault(_seedless(schedule), []).append(value)
        for schedule, values in counts.items():
            several = schedule != BEST_STATIC and len(values) > 1
            point = Point(sum(values) / len(values) if several else values[0], False, index, schedule=schedule)
            actions.setdefault(schedule, replace(point, deviation=stdev(values)) if several else point)
    return actions


def _over_best(reports: Sequence[Report]) -> dict[tuple[str, str], Point]:
    """Tokens/s of each trained policy over the best static tree of its grid, replayed and live, mean over its seeds."""
    points: dict[tuple[str, str], Point] = {}
    for index, report in enumerate(reports):
        if curves_of(report).get("priced_by"):
            continue
        temperature = f"{_temperature(report):g}"
        parents = [entry for entry in records(report.get("parents")) if entry.get("kind") == POLICIES]
        policies = [text(entry.get("name")).removesuffix(f"-t{temperature}") for entry in parents]
        for source in ("replayed", "live"):
            spread = mapping(mapping(curves_of(report).get("seeds")).get(source))
            value, bounds = number(spread.get("mean")), numbers(spread.get("ci95"))
            if value is not None and policies:
                interval = (bounds[0], bounds[1]) if len(bounds) == 2 else None
                deviation = number(spread.get("sd"))
                point = Point(value, source == "live", index, STATIC, policies[0], deviation, interval)
                points.setdefault((f"T = {temperature}, {source}", policies[0]), point)
    return points


def _scaling(reports: Sequence[Report], figure: str) -> dict[tuple[str, int], Point]:
    """A figure by selector and pool size.  Replayed ones come first, because they average over pools of one size."""
    points = []
    for index, report in enumerate(reports):
        rows = [row for row in rows_of(report) if row.get("axis") == POOL_SIZE and _is_plain(row)]
        rows += records(mapping(curves_of(report).get("scaling")).get(POOL_SIZE))
        points += [(index, row) for row in rows if not _is_tuned(row)]
    points.sort(key=lambda point: " over the pool" in text(point[1].get("method")))
    scaling: dict[tuple[str, int], Point] = {}
    for index, row in points:
        value, (selector, pool, _) = number(row.get(figure)), text(row.get("method")).partition(" over the pool")
        if value is not None and count(row.get("at")):
            point = Point(value, live=bool(pool) or is_live(row), report=index, selector=selector)
            scaling.setdefault((selector, count(row.get("at"))), point)
    return scaling


def _router(reports: Sequence[Report]) -> dict[str, Point]:
    """The share of prompts that the router sends to the right drafter, in percent, by their wording."""
    accuracy: dict[str, Point] = {}
    for index, report in enumerate(reports):
        for row in rows_of(report):
            if (value := number(row.get("accuracy"))) is not None:
                point = Point(100 * value, live=False, report=index, selector="router")
                accuracy.setdefault(text(row.get("prompts")), point)
    return accuracy


def _signals(reports: Sequence[Report]) -> dict[tuple[str, str], Point]:
    """MetaSD's signal strength R of the best and the second drafter, by domain and reward."""
    signals: dict[tuple[str, str], Point] = {}
    for index, report in enumerate(reports):
        for row in records(curves_of(report).get("signal_strength")):
            if (value := number(row.get("signal"))) is not None:
                reward = text(row.get("reward"))
                signals.setdefault((text(row.get("domain")), reward), Point(value, False, index, reward))
    return signals


def _priced(reports: Sequence[Report]) -> dict[tuple[str, str], Point]:
    """Replayed tokens/s over those without a drafter, by the device whose seconds they are in, and by schedule.

    The best static tree and perfect foresight are those of a grid, whose name follows theirs.
    """
    speeds: dict[tuple[str, str], Point] = {}
    for index, report in enumerate(reports):
        device, suffix = (text(curves_of(report).get(key)) for key in ("profile", "priced_by"))
        rows = records(curves_of(report).get("replayed"))
        rates = {text(row.get("name")): number(row.get("tokens_per_s")) for row in rows}
        grid, plain = text(mapping(curves_of(report).get("grid")).get("name")), rates.get(NO_DRAFTING)
        ratios: dict[str, list[float]] = {}
        for name, rate in rates.items():
            if plain and rate and name != NO_DRAFTING:
                schedule = name if name.startswith(FORESIGHT) else schedule_of(name)
                if schedule in (BEST_STATIC, FORESIGHT):
                    schedule = f"{schedule} of {grid}"
                schedule = _seedless(schedule).removesuffix(f"-{suffix}")  # policies are named after the device too
                ratios.setdefault(schedule, []).append(rate / plain)
        for schedule, values in ratios.items():
            several = not schedule.startswith(BEST_STATIC) and len(values) > 1
            point = Point(sum(values) / len(values) if several else values[0], False, index, schedule=schedule)
            speeds.setdefault((device, schedule), replace(point, deviation=stdev(values)) if several else point)
    return speeds
