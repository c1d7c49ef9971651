"""Figures of a report, each drawn if the report has its numbers."""

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
    overall_rows,
    records,
    rows_of,
    text,
)
from drafterforge.reporting.report_table import ReportTable

Report = Mapping[str, Any]
MAX_ROWS = 40  # of a figure
MAX_SERIES = 8  # lines that can be distinguished
STEPS = ("draft", "verify", "select", "schedule", "host")  # of a cycle, without prefill
QUANTITIES = {"speedup": "speed-up", "mat": "MAT", "regret_cycles": "regret, cycles per request"}


@dataclass(frozen=True)
class Figure:
    """A drawing with its description and numbers."""

    key: str
    title: str
    alt: str  # description of the drawing
    svg: str
    table: ReportTable


def figures_of(report: Report) -> list[Figure]:
    """All figures for which the report has numbers, most important first."""
    return [figure for build in BUILDERS for figure in build(report)]


def speedups(report: Report) -> Iterator[Figure]:
    """Speed-ups as bars with intervals."""
    rows = [row for row in overall_rows(report) if is_live(row) and number(row.get("speedup")) is not None]
    rows = [row for row in rows if not row.get("axis")][:MAX_ROWS]
    if not any(not is_baseline(row) for row in rows):
        return
    names, values = _labels(rows), [number(row["speedup"]) for row in rows]
    intervals = [interval(row) for row in rows]
    flagged = [index for index, row in enumerate(rows) if count(row.get("mismatches"))]
    svg = charts.bars("speedups", names, values, intervals, "tokens/s over autoregressive decoding", 1.0, flagged)
    best = max(range(len(rows)), key=lambda index: values[index])
    with_intervals = " with 95 % intervals" if any(intervals) else ""
    alt = f"Bars of speed-ups{with_intervals}. The longest is {names[best]} with {values[best]:.2f}x."
    alt += " Red: rows with mismatches." if flagged else ""
    cells = [
        [name, f"{value:.3f}", *(f"{bound:.3f}" for bound in bounds or ())]
        for name, value, bounds in zip(names, values, intervals, strict=True)
    ]
    cells = [row + [""] * (4 - len(row)) for row in cells]
    yield _figure(
        "speedups", "Speed-up over autoregressive decoding", alt, svg, ["method", "speed-up", "low", "high"], cells
    )


def speedups_by_domain(report: Report) -> Iterator[Figure]:
    """Speed-ups of methods by domain, if rows have several domains."""
    rows = [row for row in rows_of(report) if is_live(row) and number(row.get("speedup")) is not None]
    rows = [row for row in rows if not row.get("axis") and not is_baseline(row)]
    columns = sorted({text(row.get("domain")) for row in rows} - {ALL})
    if len(columns) < 2:
        return
    table: dict[str, dict[str, float]] = {}
    for row in rows:
        table.setdefault(text(row.get("method")), {})[text(row.get("domain"))] = number(row["speedup"])
    names = list(table)[:MAX_ROWS]
    cells = [[table[name].get(column) for column in columns] for name in names]
    svg = charts.heat_map("speedups-by-domain", cells, names, columns)
    best = [
        f"{column}: {max(names, key=lambda name: table[name].get(column, 0.0))}, "
        f"{max(table[name].get(column, 0.0) for name in names):.2f}x"
        for column in columns
    ]
    alt = f"Speed-up of each method over autoregressive decoding, by domain; the best is bold. {'; '.join(best)}."
    table_cells = [
        [name, *("" if v is None else f"{v:.3f}" for v in row)] for name, row in zip(names, cells, strict=True)
    ]
    yield _figure("speedups-by-domain", "Speed-up by domain", alt, svg, ["method", *columns], table_cells)


def domains(report: Report) -> Iterator[Figure]:
    """MAT of drafters by domain."""
    matrix = {text(key): mapping(value) for key, value in mapping(curves_of(report).get("mat_by_domain")).items()}
    names = list(dict.fromkeys(name for row in matrix.values() for name in row))[:MAX_ROWS]
    values = [[number(row.get(name)) for row in matrix.values()] for name in names]
    filled = [index for index, row in enumerate(values) if any(value is not None for value in row)]
    if not filled:
        return
    drafters, cells = [text(names[index]) for index in filled], [values[index] for index in filled]
    columns = list(matrix)
    svg = charts.heat_map("domains", cells, drafters, columns)
    best = []
    for index, domain in enumerate(columns):
        column = [(row[index], name) for row, name in zip(cells, drafters, strict=True) if row[index] is not None]
        if column:
            best.append(f"{domain}: {max(column)[1]} {max(column)[0]:.2f}")
    alt = f"MAT of each drafter alone, by domain of the answer; the best of each domain is bold. {'; '.join(best)}."
    table_cells = [
        [name, *("" if v is None else f"{v:.3f}" for v in row)] for name, row in zip(drafters, cells, strict=True)
    ]
    yield _figure("domains", "Drafters by domain", alt, svg, ["drafter", *columns], table_cells)


def selectors(report: Report) -> Iterator[Figure]:
    """MAT of replayed rows, with the best static drafter and hindsight."""
    rows = [row for row in overall_rows(report) if not is_live(row) and number(row.get("mat")) is not None]
    rows = [row for row in rows if not row.get("axis")]
    rows = sorted(rows, key=lambda row: -number(row["mat"]))[:MAX_ROWS]
    if len(rows) < 2:
        return
    labels = {"static": "one drafter", "oracle": "hindsight"}
    kinds = [labels.get(text(row.get("selector")), "selector") for row in rows]
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
    """Tokens/s of schedules, and their MAT against the cost of a cycle."""
    rows = [row for row in records(curves_of(report).get("replayed")) if number(row.get("tokens_per_s"))][:MAX_ROWS]
    rows = [row for row in rows if number(row["tokens_per_s"]) > 0]
    if not rows:
        return
    names, rates = _labels(rows), [number(row["tokens_per_s"]) for row in rows]
    base = next(
        (r for n, r in zip(names, rates, strict=True) if n.startswith(("best static tree", "best arm of the"))), None
    )
    svg = charts.bars("schedules", names, rates, [None] * len(rows), "tokens/s, replayed", base, form=".1f")
    best = max(range(len(rows)), key=lambda index: rates[index])
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
        svg = charts.scatter("cost", points, ("ms per cycle", "MAT"))
        fastest = max(points, key=lambda name: points[name][1] / points[name][0])
        alt = f"MAT against the cost of a cycle, one mark per schedule. {fastest} emits the most tokens per second; "
        alt += "schedules below the line are slower."
        cells = [[name, f"{x:.2f}", f"{y:.3f}"] for name, (x, y) in points.items()]
        yield _figure("cost", "MAT against cost", alt, svg, ["schedule", "ms per cycle", "MAT"], cells)


def times(report: Report) -> Iterator[Figure]:
    """Time of a cycle by step."""
    rows = [row for row in overall_rows(report) if is_live(row) and count(row.get("num_cycles")) > 0]
    rows = [row for row in rows if not row.get("axis") and not row.get("external")]
    rows = [row for row in rows if any(number(mapping(row.get("time_s")).get(part)) for part in STEPS)][:MAX_ROWS]
    if not rows:
        return
    names, parts = _labels(rows), {}
    for part in STEPS:
        spent = [max(0.0, number(row["time_s"].get(part)) or 0.0) for row in rows]
        parts[part] = [1000 * part_ms / count(row["num_cycles"]) for part_ms, row in zip(spent, rows, strict=True)]
    svg = charts.stacked("times", names, parts, "ms per cycle, without prefill")
    alt = "Stacked bars of the milliseconds per cycle, by step. " + "; ".join(
        f"{name} {sum(part_ms[index] for part_ms in parts.values()):.1f} ms" for index, name in enumerate(names)
    )
    cells = [[name, *(f"{part_ms[index]:.3f}" for part_ms in parts.values())] for index, name in enumerate(names)]
    yield _figure("times", "Time of a cycle", f"{alt}.", svg, ["method", *parts], cells)


def regret(report: Report) -> Iterator[Figure]:
    """Cumulative regret of selectors."""
    curves = {text(name): numbers(values) for name, values in mapping(curves_of(report).get("regret_curves")).items()}
    curves = {name: values for name, values in curves.items() if values}
    if not curves:
        return
    ranked = sorted(curves, key=lambda name: curves[name][-1])
    series = {name: list(enumerate(curves[name], start=1)) for name in ranked[:MAX_SERIES]}
    svg = charts.lines("regret", series, ("requests or cycles", "cumulative regret, cycles"))
    alt = f"Cumulative regret against the best drafter in hindsight. {_ends(curves, ranked)}"
    cells = [[name, f"{curves[name][-1]:.2f}"] for name in ranked]
    yield _figure("regret", "Cumulative regret", alt, svg, ["method", "at the end"], cells)


def regret_by_order(report: Report) -> Iterator[Figure]:
    """Cumulative regret of selectors that carry what they learned, one figure for each order of the requests."""
    for index, (order, value) in enumerate(mapping(curves_of(report).get("regret_by_order")).items()):
        means: dict[str, list[float]] = {}
        bands: dict[str, list[tuple[float, float]]] = {}
        for name, parts in mapping(value).items():
            mean, low, high = (numbers(mapping(parts).get(key)) for key in ("mean", "low", "high"))
            if mean and len(mean) == len(low) == len(high):
                means[text(name)], bands[text(name)] = mean, list(zip(low, high, strict=True))
        if not means:
            continue
        ranked = sorted(means, key=lambda name: means[name][-1])
        series = {name: list(enumerate(means[name], start=1)) for name in ranked[:MAX_SERIES]}
        key, title = f"regret-{index}", f"Cumulative regret, requests in {text(order)} order"
        drawn = {name: bands[name] for name in series}
        svg = charts.lines(key, series, ("requests", "cumulative regret, cycles"), bands=drawn)
        alt = f"{title}; what a selector learned is carried from request to request. {_ends(means, ranked)}"
        cells = [[name, f"{means[name][-1]:.2f}", *(f"{edge:.2f}" for edge in bands[name][-1])] for name in ranked]
        yield _figure(key, title, alt, svg, ["method", "at the end", "10 % of draws", "90 %"], cells)


def weights(report: Report) -> Iterator[Figure]:
    """Weights of a selector over a mixed conversation, cycle by cycle."""
    series_by_name = {text(name): numbers(values) for name, values in mapping(curves_of(report).get("weights")).items()}
    series_by_name = {
        name: [max(0.0, weight) for weight in values] for name, values in series_by_name.items() if values
    }
    if not series_by_name:
        return
    ranked = sorted(series_by_name, key=lambda name: -sum(series_by_name[name]))
    series = {name: series_by_name[name] for name in ranked[: MAX_SERIES - 1]}
    rest = [series_by_name[name] for name in ranked[MAX_SERIES - 1 :]]
    if rest:
        length = max(map(len, rest))
        series["others"] = [sum(weight[cycle] for weight in rest if cycle < len(weight)) for cycle in range(length)]
    svg = charts.areas("weights", series, ("cycle", "weight"))
    means = {name: sum(values) / len(values) for name, values in series_by_name.items()}
    alt = "Weights of the drafters over the cycles of a conversation. On average " + ", ".join(
        f"{name} {means[name]:.2f}" for name in ranked[:MAX_SERIES]
    )
    cells = [[name, f"{means[name]:.3f}", f"{series_by_name[name][-1]:.3f}"] for name in ranked]
    yield _figure("weights", "Selector weights", f"{alt}.", svg, ["drafter", "mean weight", "at the end"], cells)


def actions(report: Report) -> Iterator[Figure]:
    """Share of cycles of each tree that a policy chose."""
    shares: dict[tuple[int, int], float] = {}
    for action in records(curves_of(report).get("actions")):
        share = number(action.get("share"))
        if (
            share is not None
            and number(action.get("depth")) is not None
            and number(action.get("num_tokens")) is not None
        ):
            tree = count(action["depth"]), count(action["num_tokens"])
            shares[tree] = shares.get(tree, 0.0) + 100 * share
    if not shares:
        return
    depths, sizes = sorted({depth for depth, _ in shares})[:MAX_ROWS], sorted({size for _, size in shares})[:16]
    cells = [[shares.get((depth, size)) for size in sizes] for depth in depths]
    svg = charts.heat_map(
        "actions", cells, list(map(str, depths)), list(map(str, sizes)), ("nodes", "depth"), ".0f", False
    )
    most = max(shares, key=shares.get)
    alt = f"Percent of cycles by depth and nodes of the tree. Most often depth {most[0]} with {most[1]} nodes, "
    alt += f"{shares[most]:.0f} %."
    table_cells = [[str(d), str(n), f"{share:.1f} %"] for (d, n), share in sorted(shares.items())]
    yield _figure(
        "actions", "Trees that the policy chose", alt, svg, ["depth", "nodes", "share of cycles"], table_cells
    )


def scaling(report: Report) -> Iterator[Figure]:
    """One figure per axis and quantity."""
    for axis_index, (axis, value) in enumerate(mapping(curves_of(report).get("scaling")).items()):
        for quantity, label in QUANTITIES.items():
            series: dict[str, list[tuple[float, float]]] = {}
            for point in records(value):
                at, figure = number(point.get("at")), number(point.get(quantity))
                if at is not None and figure is not None:
                    series.setdefault(text(point.get("method")), []).append((at, figure))
            if not series:
                continue
            series = {name: sorted(points) for name, points in list(series.items())[:MAX_SERIES]}
            key, title = f"scaling-{axis_index}-{quantity}", f"{label[0].upper()}{label[1:]} against {text(axis)}"
            svg = charts.lines(key, series, (text(axis), label), marked=True)
            ends = "; ".join(f"{name} {points[0][1]:.2f} to {points[-1][1]:.2f}" for name, points in series.items())
            cells = [[name, f"{x:g}", f"{y:.3f}"] for name, points in series.items() for x, y in points]
            yield _figure(key, title, f"{title}: {ends}.", svg, ["method", text(axis), label], cells)


def learning(report: Report) -> Iterator[Figure]:
    """MAT of a server that learns from a log of requests, request by request."""
    curves = {text(name): points for name, points in mapping(curves_of(report).get("mat_by_request")).items()}
    points = {name: [numbers(point) for point in values] for name, values in curves.items() if isinstance(values, list)}
    points = {name: [point for point in values if len(point) == 4] for name, values in points.items()}
    points = {name: values for name, values in list(points.items())[:MAX_SERIES] if values}
    if not points:
        return
    series = {name: [(at, mean) for at, mean, _, _ in values] for name, values in points.items()}
    bands = {name: [(least, most) for *_, least, most in values] for name, values in points.items()}
    joined = {
        number(version.get("requests"))
        for version in records(curves_of(report).get("learned"))
        if version.get("state") in ("joined", "left")
    }
    events = sorted(at for at in joined if at is not None)
    title = "MAT by request, moving mean"
    svg = charts.lines("learning", series, ("requests", "MAT"), bands=bands, events=events)
    ends = "; ".join(f"{name} {values[0][1]:.2f} to {values[-1][1]:.2f}" for name, values in points.items())
    alt = f"Tokens per cycle in the last 50 requests, with the range over seeds: {ends}."
    alt += (
        f" Dotted: a learned drafter joins, after {', '.join(f'{at:.0f}' for at in events)} requests." if events else ""
    )
    cells = [[name, *(f"{value:g}" for value in point)] for name, values in points.items() for point in values]
    yield _figure("learning", title, alt, svg, ["method", "requests", "mean", "least", "most"], cells)


BUILDERS: tuple[Callable[[Report], Iterator[Figure]], ...] = (
    speedups,
    speedups_by_domain,
    domains,
    selectors,
    regret,
    regret_by_order,
    weights,
    schedules,
    actions,
    times,
    learning,
    scaling,
)


def _figure(key: str, title: str, alt: str, svg: str, headings: list[str], cells: list[list[str]]) -> Figure:
    return Figure(key, title, alt, svg, ReportTable.trimmed(title, headings, cells))


def _labels(rows: list[Mapping[str, Any]]) -> list[str]:
    """Names of rows, with domain and dtype if those differ."""
    extra = [key for key in ("domain", "dtype") if len({str(row.get(key)) for row in rows}) > 1]
    return [
        ", ".join(
            text(value) for value in (row.get("method", row.get("name")), *(row.get(key) for key in extra)) if value
        )
        for row in rows
    ]


def _ends(curves: Mapping[str, list[float]], ranked: list[str]) -> str:
    ends = "; ".join(f"{name} {curves[name][-1]:.1f}" for name in ranked[:MAX_SERIES])
    more = f"; {len(ranked) - MAX_SERIES} more are in the table" if len(ranked) > MAX_SERIES else ""
    return f"At the end: {ends}{more}."
