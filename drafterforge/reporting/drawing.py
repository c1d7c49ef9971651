"""Matplotlib to inline SVG: text stays text, colours follow the page's theme, the same data gives the same bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.7  # inches; on a phone shrunk to three quarters, where letters are still read
MOST_LABEL = 30  # characters
# Colours that stand for the page's variables: matplotlib wants numbers, the theme decides later.
INK, FAINT, HEAT, BAD, PAPER = "#010203", "#010204", "#010205", "#010206", "#010207"
SERIES = [f"#0102a{place}" for place in range(8)]
VARIABLES = {INK: "ink", FAINT: "faint", HEAT: "heat", BAD: "bad", PAPER: "paper"} | {
    colour: f"c{place}" for place, colour in enumerate(SERIES)
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
    """An `<svg>` of one pair of axes.  key: keeps its ids apart from those of other figures on the page."""
    from matplotlib import style
    from matplotlib.figure import Figure

    drawn = io.BytesIO()
    with style.context(["default", SETTINGS | {"svg.hashsalt": key}]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that matplotlib's font lacks are drawn by the browser's
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure.add_subplot())
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return inline(drawn.getvalue().decode())


def inline(svg: str) -> str:
    """The element without what belongs to a file, in the page's font and colours."""
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"<svg[^>]*?viewBox=(\"[^\"]*\")[^>]*>", r"<svg viewBox=\1>", svg, count=1)
    svg = re.sub(r"<[^<>]*>", lambda tag: _themed(tag[0]), svg)
    return re.sub(r"\n\s*", "\n", svg)


def _themed(tag: str) -> str:
    tag = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", tag)
    tag = re.sub(r"font: ([^;\"']*?[\d.]+px) [^;\"]*", r"font: \1 var(--font)", tag)  # so do older matplotlibs
    return re.sub(r"#0102[0-9a-f]{2}", lambda found: f"var(--{VARIABLES[found[0]]})", tag)


def short(name: str) -> str:
    """A label that leaves room for the figure: names often differ at their ends."""
    half = MOST_LABEL // 2
    return name if len(name) <= MOST_LABEL else f"{name[: half - 1]}…{name[-half:]}"
