"""Points of reports' curves: figures that are no row, such as a pool size, a seed's spread or a device's price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import stdev

from drafterforge.reporting.papers.rows import (
    BEST_STATIC,
    STATIC,
    Report,
    is_plain,
    is_tuned,
    schedule_of,
    seedless,
)
from drafterforge.reporting.reader import (
    count,
    curves_of,
    is_live,
    mapping,
    number,
    numbers,
    records,
    rows_of,
    temperature_of,
    text,
)

POLICIES = "policies"  # kind of an artifact
NO_DRAFTING, FORESIGHT = "no drafting", "perfect foresight"  # names in `curves.replayed`
POOL_SIZE = "pool size"  # axis of `curves.scaling`


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
    agrees: bool = True  # of a reward: whether the drafter that it prefers emits the most tokens a cycle


def tree_counts(reports: Sequence[Report]) -> dict[str, Point]:
    """The number of different trees of each policy, mean over its seeds, from the first report that has it."""
    actions: dict[str, Point] = {}
    for index, report in enumerate(reports):
        counts: dict[str, list[float]] = {}
        for row in records(curves_of(report).get("replayed")):
            schedule, value = schedule_of(text(row.get("name"))), number(row.get("actions"))
            if value is not None:
                counts.setdefault(seedless(schedule), []).append(value)
        for schedule, values in counts.items():
            several = schedule != BEST_STATIC and len(values) > 1
            point = Point(sum(values) / len(values) if several else values[0], False, index, schedule=schedule)
            actions.setdefault(schedule, replace(point, deviation=stdev(values)) if several else point)
    return actions


def over_best_points(reports: Sequence[Report]) -> dict[tuple[str, str], Point]:
    """Tokens/s of each trained policy over the best static tree of its grid, replayed and live, mean over its seeds."""
    points: dict[tuple[str, str], Point] = {}
    for index, report in enumerate(reports):
        if curves_of(report).get("priced_by"):
            continue
        temperature = f"{temperature_of(rows_of(report)):g}"
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


def scaling_points(reports: Sequence[Report], figure: str) -> dict[tuple[str, int], Point]:
    """A figure by selector and pool size.  Replayed ones come first, because they average over pools of one size."""
    points = []
    for index, report in enumerate(reports):
        rows = [row for row in rows_of(report) if row.get("axis") == POOL_SIZE and is_plain(row)]
        rows += records(mapping(curves_of(report).get("scaling")).get(POOL_SIZE))
        points += [(index, row) for row in rows if not is_tuned(row)]
    points.sort(key=lambda point: " over the pool" in text(point[1].get("method")))
    scaling: dict[tuple[str, int], Point] = {}
    for index, row in points:
        value, (selector, pool, _) = number(row.get(figure)), text(row.get("method")).partition(" over the pool")
        if value is not None and count(row.get("at")):
            point = Point(value, live=bool(pool) or is_live(row), report=index, selector=selector)
            scaling.setdefault((selector, count(row.get("at"))), point)
    return scaling


def router_points(reports: Sequence[Report]) -> dict[str, Point]:
    """The share of prompts that the router sends to the right drafter, in percent, by their wording."""
    accuracy: dict[str, Point] = {}
    for index, report in enumerate(reports):
        for row in rows_of(report):
            if (value := number(row.get("accuracy"))) is not None:
                point = Point(100 * value, live=False, report=index, selector="router")
                accuracy.setdefault(text(row.get("prompts")), point)
    return accuracy


def signal_points(reports: Sequence[Report]) -> dict[tuple[str, str], Point]:
    """MetaSD's signal strength R of the best and the second drafter, by domain and reward."""
    signals: dict[tuple[str, str], Point] = {}
    for index, report in enumerate(reports):
        for row in records(curves_of(report).get("signal_strength")):
            if (value := number(row.get("signal"))) is not None:
                reward = text(row.get("reward"))
                point = Point(value, False, index, reward, agrees=row.get("agrees") is not False)
                signals.setdefault((text(row.get("domain")), reward), point)
    return signals


def priced_points(reports: Sequence[Report]) -> dict[tuple[str, str], Point]:
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
                schedule = seedless(schedule).removesuffix(f"-{suffix}")  # policies are named after the device too
                ratios.setdefault(schedule, []).append(rate / plain)
        for schedule, values in ratios.items():
            several = not schedule.startswith(BEST_STATIC) and len(values) > 1
            point = Point(sum(values) / len(values) if several else values[0], False, index, schedule=schedule)
            speeds.setdefault((device, schedule), replace(point, deviation=stdev(values)) if several else point)
    return speeds
