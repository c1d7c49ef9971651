"""Charts of a report: each function turns plain numbers into an `<svg>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drafterforge.reporting.drawing import BAD, DASHES, FAINT, HEAT, INK, MARKERS, SERIES, draw, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

MAX_POINTS = 300  # of a line
BAR = 0.26  # inches
Points = Sequence[tuple[float, float]]


def heat_map(
    key: str,
    cells: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    labels: tuple[str, str] = ("", ""),
    form: str = ".2f",
    columnwise: bool = True,
) -> str:
    """Numbers on coloured cells, scaled per column with the largest bold, or over all cells."""
    all_values = [value for row in cells for value in row if value is not None]

    def paint(axes: Axes) -> None:
        for x in range(len(columns)):
            column = [row[x] for row in cells if row[x] is not None]
            scale = column if columnwise else all_values
            low, high = min(scale, default=0), max(scale, default=0)
            for y, row in enumerate(cells):
                if row[x] is None:
                    continue
                share = (row[x] - low) / (high - low) if high > low else 0.5
                axes.add_patch(_box(x, y, 0.05 + 0.55 * share))
                weight = "bold" if columnwise and row[x] == high and len(column) > 1 else "normal"
                axes.text(x, y, f"{row[x]:{form}}", ha="center", va="center", size=8.5, weight=weight)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel=labels[0], ylabel=labels[1])
        tilt = {"rotation": 40, "ha": "left", "rotation_mode": "anchor"} if max(map(len, columns)) > 5 else {}
        axes.set_xticks(range(len(columns)), [short(name) for name in columns], **tilt)
        axes.set_yticks(range(len(rows)), [short(name) for name in rows])
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    return draw(key, 1.1 + BAR * 1.1 * len(rows), paint)


def _box(x: float, y: float, strength: float) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=HEAT, alpha=round(strength, 3), linewidth=0)


def bars(
    key: str,
    names: Sequence[str],
    values: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
    label: str,
    reference: float | None = None,
    flagged: Sequence[int] = (),
    form: str = ".2f",
) -> str:
    """Horizontal bars with numbers and intervals, red for `flagged` indices; a dashed line at the reference."""

    def paint(axes: Axes) -> None:
        positions = range(len(names))
        colours = [BAD if index in flagged else SERIES[0] for index in positions]
        axes.barh(positions, values, height=0.66, color=colours, alpha=0.75, linewidth=0)
        for index, bounds in enumerate(intervals):
            if bounds:
                axes.plot(bounds, [index, index], color=INK, linewidth=1.4, marker="|", markersize=5)
        ends = [max(value, bounds[1] if bounds else 0) for value, bounds in zip(values, intervals, strict=True)]
        for index, value in enumerate(values):
            axes.annotate(f"{value:{form}}", (ends[index], index), (5, 0), textcoords="offset points", va="center")
        if reference is not None:
            axes.axvline(reference, color=INK, linewidth=1, linestyle="--")
        axes.set(xlim=(0, 1.17 * max([*ends, reference or 0, 1e-9])), xlabel=label)
        _named(axes, names)

    return draw(key, 0.75 + BAR * len(names), paint)


def dots(
    key: str,
    names: Sequence[str],
    values: Sequence[float],
    kinds: Sequence[str],
    label: str,
    lines: Mapping[str, float],
) -> str:
    """One dot per name, coloured by kind, with named vertical lines."""

    def paint(axes: Axes) -> None:
        for index, kind in enumerate(dict.fromkeys(kinds)):
            members = [row for row, row_kind in enumerate(kinds) if row_kind == kind]
            style = {"color": SERIES[index], "marker": MARKERS[index], "linestyle": "", "markersize": 6}
            axes.plot([values[row] for row in members], members, label=kind, **style)
        for index, (name, value) in enumerate(lines.items()):
            axes.axvline(value, color=INK, linewidth=1, linestyle=DASHES[index + 1], label=f"{short(name)} {value:.2f}")
        axes.set(xlabel=label)
        axes.grid(axis="y")
        _named(axes, names)
        _legend(axes, 2)

    return draw(key, 1.2 + 0.2 * len(names), paint)


def stacked(key: str, names: Sequence[str], parts: Mapping[str, Sequence[float]], label: str) -> str:
    """Horizontal stacked bars with their totals."""

    def paint(axes: Axes) -> None:
        starts = [0.0] * len(names)
        for index, (part, values) in enumerate(parts.items()):
            axes.barh(range(len(names)), values, left=starts, height=0.66, color=SERIES[index], label=part, linewidth=0)
            starts = [start + width for start, width in zip(starts, values, strict=True)]
        for index, total in enumerate(starts):
            axes.annotate(f"{total:.1f}", (total, index), (5, 0), textcoords="offset points", va="center")
        axes.set(xlim=(0, 1.17 * max([*starts, 1e-9])), xlabel=label)
        _named(axes, names)
        _legend(axes, 5)

    return draw(key, 1.2 + BAR * len(names), paint)


def scatter(key: str, points: Mapping[str, tuple[float, float]], labels: tuple[str, str]) -> str:
    """Named points, and the line from the origin through the fastest, the one with the largest y / x."""

    def paint(axes: Axes) -> None:
        for index, (name, (x, y)) in enumerate(points.items()):
            style = {"color": SERIES[index % len(SERIES)], "marker": MARKERS[index % len(MARKERS)]}
            axes.plot([x], [y], linestyle="", markersize=7, label=short(name), **style)
        steep = max(y / x for x, y in points.values())
        low, high = min(x for x, _ in points.values()), max(x for x, _ in points.values())
        ends = [0.92 * low, 1.05 * high]
        axes.plot(ends, [steep * x for x in ends], color=FAINT, linewidth=1, label="as fast as the fastest")
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.grid()
        _legend(axes, 2)

    return draw(key, 3.2 + 0.1 * len(points), paint)


def lines(
    key: str,
    series: Mapping[str, Points],
    labels: tuple[str, str],
    marked: bool = False,
    bands: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    events: Sequence[float] = (),
) -> str:
    """Lines over a common axis.

    bands: least and most at each point of a series.  events: vertical lines at these x.
    """

    def paint(axes: Axes) -> None:
        for x in events:
            axes.axvline(x, color=FAINT, linewidth=1, linestyle=":")
        for name, edges in (bands or {}).items():
            colour = SERIES[list(series).index(name) % len(SERIES)]
            low, high = (
                _thinned([(x, edge[side]) for (x, _), edge in zip(series[name], edges, strict=True)]) for side in (0, 1)
            )
            axes.fill_between(
                [x for x, _ in low], [y for _, y in low], [y for _, y in high], color=colour, alpha=0.2, linewidth=0
            )
        for index, (name, points) in enumerate(series.items()):
            thinned = _thinned(points)
            style = {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[index % len(DASHES)]}
            style |= {"marker": MARKERS[index % len(MARKERS)], "markersize": 5} if marked else {}
            axes.plot([x for x, _ in thinned], [y for _, y in thinned], linewidth=1.7, label=short(name), **style)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.grid()
        _legend(axes, 2)

    return draw(key, 3.1, paint)


def areas(key: str, series: Mapping[str, Sequence[float]], labels: tuple[str, str]) -> str:
    """Stacked areas over a common axis."""

    def paint(axes: Axes) -> None:
        length = max(map(len, series.values()))
        cycles = [cycle for cycle, _ in _thinned([(cycle, 0.0) for cycle in range(length)])]
        stack = [[values[cycle] if cycle < len(values) else 0.0 for cycle in cycles] for values in series.values()]
        colours = [SERIES[index % len(SERIES)] for index in range(len(series))]
        axes.stackplot(cycles, stack, labels=[short(name) for name in series], colors=colours, linewidth=0, alpha=0.9)
        axes.set(xlabel=labels[0], ylabel=labels[1], ylim=(0, None), xlim=(0, max(1, length - 1)))
        _legend(axes, 3)

    return draw(key, 3.0, paint)


def _named(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _legend(axes: Axes, columns: int) -> None:
    axes.figure.legend(loc="outside lower left", ncols=columns, fontsize=8.5, handlelength=1.8, columnspacing=1.2)


def _thinned(points: Points) -> list[tuple[float, float]]:
    """At most about `MAX_POINTS` evenly spaced points, and the last."""
    step = -(-len(points) // MAX_POINTS)
    thinned = list(points[::step])
    return thinned if not thinned or thinned[-1] == points[-1] else [*thinned, points[-1]]
