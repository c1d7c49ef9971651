"""The figures of a report: those for which it holds the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drafterforge.reporting import charts
from drafterforge.reporting.reader import (
    ALL,
    count,
    curves_of,
    interval,
    is_baseline,
    is_live,
    mapping,
    number,
    numbers,
    records,
    rows_of,
    text,
    whole_rows,
)
from drafterforge.reporting.tables import TableOf

Report = Mapping[str, Any]
MOST = 40  # rows of a figure
MOST_SERIES = 8  # lines that can be told apart
PARTS = ("draft", "verify", "select", "schedule", "host")  # of a cycle; prefill comes once
QUANTITIES = {"speedup": "speed-up", "mat": "MAT", "regret_cycles": "regret, cycles a request"}


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in words, and its numbers."""

    key: str
    title: str
    alt: str  # what one would see
    svg: str
    table: TableOf


def figures_of(report: Report) -> list[Figure]:
    """Every figure for which the report holds something, the most asked for first."""
    return [figure for make in MAKERS for figure in make(report)]


def speedups(report: Report) -> Iterator[Figure]:
    """Bars with intervals."""
    rows = [row for row in whole_rows(report) if is_live(row) and number(row.get("speedup")) is not None]
    rows = [row for row in rows if not row.get("axis")][:MOST]
    if not any(not is_baseline(row) for row in rows):
        return
    names, values = _labels(rows), [number(row["speedup"]) for row in rows]
    intervals = [interval(row) for row in rows]
    wrong = [place for place, row in enumerate(rows) if count(row.get("mismatches"))]
    svg = charts.bars("speedups", names, values, intervals, "tokens/s over autoregressive decoding", 1.0, wrong)
    best = max(range(len(rows)), key=lambda place: values[place])
    alt = f"Bars of speed-ups with 95 % intervals. The longest is {names[best]} with {values[best]:.2f}x."
    alt += " Red: rows with mismatches." if wrong else ""
    cells = [
        [name, f"{value:.3f}", *(f"{bound:.3f}" for bound in bounds or ())]
        for name, value, bounds in zip(names, values, intervals, strict=True)
    ]
    cells = [row + [""] * (4 - len(row)) for row in cells]
    yield _figure(
        "speedups", "Speed-up over autoregressive decoding", alt, svg, ["method", "speed-up", "low", "high"], cells
    )


def speedups_by_domain(report: Report) -> Iterator[Figure]:
    """Methods by domain, where rows tell of several."""
    rows = [row for row in rows_of(report) if is_live(row) and number(row.get("speedup")) is not None]
    rows = [row for row in rows if not row.get("axis") and not is_baseline(row)]
    columns = sorted({text(row.get("domain")) for row in rows} - {ALL})
    if len(columns) < 2:
        return
    table: dict[str, dict[str, float]] = {}
    for row in rows:
        table.setdefault(text(row.get("method")), {})[text(row.get("domain"))] = number(row["speedup"])
    names = list(table)[:MOST]
    cells = [[table[name].get(column) for column in columns] for name in names]
    svg = charts.heat_map("speedups-by-domain", cells, names, columns)
    best = [
        f"{column}: {max(names, key=lambda name: table[name].get(column, 0.0))}, "
        f"{max(table[name].get(column, 0.0) for name in names):.2f}x"
        for column in columns
    ]
    alt = f"Speed-up of every method over autoregressive decoding, by domain; the best is bold. {'; '.join(best)}."
    shown = [[name, *("" if v is None else f"{v:.3f}" for v in row)] for name, row in zip(names, cells, strict=True)]
    yield _figure("speedups-by-domain", "Speed-up by domain", alt, svg, ["method", *columns], shown)


def domains(report: Report) -> Iterator[Figure]:
    """Drafters by domain."""
    matrix = {text(key): mapping(value) for key, value in mapping(curves_of(report).get("mat_by_domain")).items()}
    raw = list(dict.fromkeys(name for row in matrix.values() for name in row))[:MOST]
    values = [[number(row.get(name)) for row in matrix.values()] for name in raw]
    kept = [place for place, row in enumerate(values) if any(value is not None for value in row)]
    if not kept:
        return
    drafters, cells = [text(raw[place]) for place in kept], [values[place] for place in kept]
    columns = list(matrix)
    svg = charts.heat_map("domains", cells, drafters, columns)
    best = []
    for place, domain in enumerate(columns):
        column = [(row[place], name) for row, name in zip(cells, drafters, strict=True) if row[place] is not None]
        if column:
            best.append(f"{domain}: {max(column)[1]} {max(column)[0]:.2f}")
    alt = f"MAT of every drafter alone, by domain of the answer; the best of each domain is bold. {'; '.join(best)}."
    shown = [[name, *("" if v is None else f"{v:.3f}" for v in row)] for name, row in zip(drafters, cells, strict=True)]
    yield _figure("domains", "Drafters by domain", alt, svg, ["drafter", *columns], shown)


def selectors(report: Report) -> Iterator[Figure]:
    """MAT of replayed rows beside the best static drafter and hindsight."""
    rows = [row for row in whole_rows(report) if not is_live(row) and number(row.get("mat")) is not None]
    rows = [row for row in rows if not row.get("axis")]
    rows = sorted(rows, key=lambda row: -number(row["mat"]))[:MOST]
    if len(rows) < 2:
        return
    words = {"static": "one drafter", "oracle": "hindsight"}
    kinds = [words.get(text(row.get("selector")), "selector") for row in rows]
    names, values = _labels(rows), [number(row["mat"]) for row in rows]
    marks = {}
    for kind, label in (("one drafter", "best drafter"), ("hindsight", "best in hindsight")):
        if kind in kinds:
            marks[label] = values[kinds.index(kind)]
    svg = charts.dots("selectors", names, values, kinds, "MAT, replayed", marks)
    alt = f"MAT of {len(rows)} replayed rows. The highest is {names[0]} with {values[0]:.3f}."
    alt += "".join(f" {name.capitalize()}: {value:.3f}." for name, value in marks.items())
    cells = [[name, kind, f"{value:.4f}"] for name, kind, value in zip(names, kinds, values, strict=True)]
    yield _figure("selectors", "MAT of selectors", alt, svg, ["method", "kind", "MAT"], cells)


def schedules(report: Report) -> Iterator[Figure]:
    """Rates of schedules, and MAT against the cost of a cycle where a row has both."""
    rows = [one for one in records(curves_of(report).get("replayed")) if number(one.get("tokens_per_s"))][:MOST]
    rows = [row for row in rows if number(row["tokens_per_s"]) > 0]
    if not rows:
        return
    names, rates = _labels(rows), [number(row["tokens_per_s"]) for row in rows]
    base = next(
        (r for n, r in zip(names, rates, strict=True) if n.startswith(("best static tree", "best arm of the"))), None
    )
    svg = charts.bars("schedules", names, rates, [None] * len(rows), "tokens/s, replayed", base, form=".1f")
    best = max(range(len(rows)), key=lambda place: rates[place])
    alt = f"Bars of replayed tokens/s. The longest is {names[best]} with {rates[best]:.2f}."
    alt += " The dashed line is the best static choice." if base else ""
    cells = [[name, f"{rate:.3f}"] for name, rate in zip(names, rates, strict=True)]
    yield _figure("schedules", "Schedules, replayed", alt, svg, ["schedule", "tokens/s"], cells)
    points = {
        name: (1000 * number(row["mat"]) / rate, number(row["mat"]))
        for name, rate, row in zip(names, rates, rows, strict=True)
        if (number(row.get("mat")) or 0) > 0
    }
    if len(points) > 1:
        svg = charts.scatter("cost", points, ("ms a cycle", "MAT"))
        fastest = max(points, key=lambda name: points[name][1] / points[name][0])
        alt = f"MAT against what a cycle costs, one mark a schedule. {fastest} emits most tokens per second; "
        alt += "what lies below the line is slower."
        cells = [[name, f"{x:.2f}", f"{y:.3f}"] for name, (x, y) in points.items()]
        yield _figure("cost", "MAT against cost", alt, svg, ["schedule", "ms a cycle", "MAT"], cells)


def times(report: Report) -> Iterator[Figure]:
    """What a cycle spends its time on."""
    rows = [row for row in whole_rows(report) if is_live(row) and count(row.get("num_cycles")) > 0]
    rows = [row for row in rows if not row.get("axis") and not row.get("external")]
    rows = [row for row in rows if number(mapping(row.get("time_s")).get("total"))][:MOST]
    if not rows:
        return
    names, parts = _labels(rows), {}
    for part in PARTS:
        spent = [max(0.0, number(row["time_s"].get(part)) or 0.0) for row in rows]
        parts[part] = [1000 * one / count(row["num_cycles"]) for one, row in zip(spent, rows, strict=True)]
    svg = charts.stacked("times", names, parts, "ms a cycle, prefill left out")
    alt = "Stacked bars of the milliseconds that a cycle takes, by step. " + "; ".join(
        f"{name} {sum(one[place] for one in parts.values()):.1f} ms" for place, name in enumerate(names)
    )
    cells = [[name, *(f"{one[place]:.3f}" for one in parts.values())] for place, name in enumerate(names)]
    yield _figure("times", "Time of a cycle", f"{alt}.", svg, ["method", *parts], cells)


def regret(report: Report) -> Iterator[Figure]:
    """Cumulative regret of selectors."""
    found = {text(name): numbers(values) for name, values in mapping(curves_of(report).get("regret_curves")).items()}
    found = {name: values for name, values in found.items() if values}
    if not found:
        return
    ranked = sorted(found, key=lambda name: found[name][-1])
    series = {name: list(enumerate(found[name], start=1)) for name in ranked[:MOST_SERIES]}
    svg = charts.lines("regret", series, ("requests or cycles", "cumulative regret, cycles"))
    alt = f"Cumulative regret against the best drafter in hindsight. {_ends(found, ranked)}"
    cells = [[name, f"{found[name][-1]:.2f}"] for name in ranked]
    yield _figure("regret", "Cumulative regret", alt, svg, ["method", "at the end"], cells)


def weights(report: Report) -> Iterator[Figure]:
    """Weights of a selector over a mixed conversation."""
    found = {text(name): numbers(values) for name, values in mapping(curves_of(report).get("weights")).items()}
    found = {name: [max(0.0, one) for one in values] for name, values in found.items() if values}
    if not found:
        return
    ranked = sorted(found, key=lambda name: -sum(found[name]))
    series = {name: found[name] for name in ranked[: MOST_SERIES - 1]}
    rest = [found[name] for name in ranked[MOST_SERIES - 1 :]]
    if rest:
        length = max(map(len, rest))
        series["others"] = [sum(one[place] for one in rest if place < len(one)) for place in range(length)]
    svg = charts.areas("weights", series, ("cycle", "weight"))
    means = {name: sum(values) / len(values) for name, values in found.items()}
    alt = "Weights of the drafters over the cycles of a conversation. On average " + ", ".join(
        f"{name} {means[name]:.2f}" for name in ranked[:MOST_SERIES]
    )
    cells = [[name, f"{means[name]:.3f}", f"{found[name][-1]:.3f}"] for name in ranked]
    yield _figure("weights", "Selector weights", f"{alt}.", svg, ["drafter", "mean weight", "at the end"], cells)


def actions(report: Report) -> Iterator[Figure]:
    """Trees that a policy chose."""
    shares: dict[tuple[int, int], float] = {}
    for one in records(curves_of(report).get("actions")):
        share = number(one.get("share"))
        if share is not None and number(one.get("depth")) is not None and number(one.get("num_tokens")) is not None:
            place = count(one["depth"]), count(one["num_tokens"])
            shares[place] = shares.get(place, 0.0) + 100 * share
    if not shares:
        return
    depths, sizes = sorted({depth for depth, _ in shares})[:MOST], sorted({size for _, size in shares})[:16]
    cells = [[shares.get((depth, size)) for size in sizes] for depth in depths]
    svg = charts.heat_map(
        "actions", cells, list(map(str, depths)), list(map(str, sizes)), ("nodes", "depth"), ".0f", False
    )
    most = max(shares, key=shares.get)
    alt = f"Percent of cycles by depth and nodes of the tree. Most often depth {most[0]} with {most[1]} nodes, "
    alt += f"{shares[most]:.0f} %."
    shown = [[str(d), str(n), f"{share:.1f} %"] for (d, n), share in sorted(shares.items())]
    yield _figure("actions", "Trees that the policy chose", alt, svg, ["depth", "nodes", "share of cycles"], shown)


def scaling(report: Report) -> Iterator[Figure]:
    """One figure for every axis and quantity."""
    for place, (axis, value) in enumerate(mapping(curves_of(report).get("scaling")).items()):
        for quantity, label in QUANTITIES.items():
            series: dict[str, list[tuple[float, float]]] = {}
            for one in records(value):
                at, found = number(one.get("at")), number(one.get(quantity))
                if at is not None and found is not None:
                    series.setdefault(text(one.get("method")), []).append((at, found))
            if not series:
                continue
            series = {name: sorted(points) for name, points in list(series.items())[:MOST_SERIES]}
            key, title = f"scaling-{place}-{quantity}", f"{label[0].upper()}{label[1:]} against {text(axis)}"
            svg = charts.lines(key, series, (text(axis), label), marked=True)
            ends = "; ".join(f"{name} {points[0][1]:.2f} to {points[-1][1]:.2f}" for name, points in series.items())
            cells = [[name, f"{x:g}", f"{y:.3f}"] for name, points in series.items() for x, y in points]
            yield _figure(key, title, f"{title}: {ends}.", svg, ["method", text(axis), label], cells)


MAKERS: tuple[Callable[[Report], Iterator[Figure]], ...] = (
    speedups,
    speedups_by_domain,
    domains,
    selectors,
    regret,
    weights,
    schedules,
    actions,
    times,
    scaling,
)


def _figure(key: str, title: str, alt: str, svg: str, headings: list[str], cells: list[list[str]]) -> Figure:
    return Figure(key, title, alt, svg, TableOf.of(title, headings, cells))


def _labels(rows: list[Mapping[str, Any]]) -> list[str]:
    """Names of rows, with the domain and dtype where those differ."""
    extra = [key for key in ("domain", "dtype") if len({str(row.get(key)) for row in rows}) > 1]
    return [
        ", ".join(text(one) for one in (row.get("method", row.get("name")), *(row.get(key) for key in extra)) if one)
        for row in rows
    ]


def _ends(found: Mapping[str, list[float]], ranked: list[str]) -> str:
    ends = "; ".join(f"{name} {found[name][-1]:.1f}" for name in ranked[:MOST_SERIES])
    more = f"; {len(ranked) - MOST_SERIES} more are in the table" if len(ranked) > MOST_SERIES else ""
    return f"At the end: {ends}{more}."
