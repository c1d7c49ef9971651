"""Renders matplotlib to inline SVG: text stays text, colours follow the page's theme, equal data give equal bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.7  # inches; still legible when a phone shrinks it to three quarters
MAX_LABEL = 30  # characters
# Placeholder colours, replaced by the CSS variables of the page: matplotlib needs numbers.
INK, FAINT, HEAT, BAD, PAPER = "#010203", "#010204", "#010205", "#010206", "#010207"
SERIES = [f"#0102a{index}" for index in range(8)]
VARIABLES = {INK: "ink", FAINT: "faint", HEAT: "heat", BAD: "bad", PAPER: "paper"} | {
    colour: f"c{index}" for index, colour in enumerate(SERIES)
}
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = "osD^vPX*"
SETTINGS = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a drafter may be called $x
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "grid.alpha": 0.35,
    "legend.frameon": False,
    "legend.labelcolor": INK,
}


def draw(key: str, height: float, paint: Callable[[Axes], None]) -> str:
    """An `<svg>` of one pair of axes.  key: makes its ids unique on the page."""
    from matplotlib import style
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with style.context(["default", SETTINGS | {"svg.hashsalt": key}]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the browser draws letters that matplotlib's font lacks
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure.add_subplot())
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return inline(buffer.getvalue().decode())


def inline(svg: str) -> str:
    """The `<svg>` element alone, in the page's font and colours."""
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"<svg[^>]*?viewBox=(\"[^\"]*\")[^>]*>", r"<svg viewBox=\1>", svg, count=1)
    svg = re.sub(r"<[^<>]*>", lambda tag: _themed(tag[0]), svg)
    return re.sub(r"\n\s*", "\n", svg)


def _themed(tag: str) -> str:
    tag = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", tag)
    tag = re.sub(r"font: ([^;\"']*?[\d.]+px) [^;\"]*", r"font: \1 var(--font)", tag)  # older matplotlib
    return re.sub(r"#0102[0-9a-f]{2}", lambda match: f"var(--{VARIABLES[match[0]]})", tag)


def short(name: str) -> str:
    """A label shortened in the middle, because names often differ at their ends."""
    half = MAX_LABEL // 2
    return name if len(name) <= MAX_LABEL else f"{name[: half - 1]}…{name[-half:]}"
