"""`curves.png`: the learning curves of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[Mapping[str, float]]
MOST_POINTS = 1000  # of a stored curve


def thinned(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """The curves with at most `MOST_POINTS` points each, evenly spaced from the last one backwards."""
    return {name: curve[::-1][:: max(-(-len(curve) // MOST_POINTS), 1)][::-1] for name, curve in curves.items()}


def plot_curves(path: Path, curves: Mapping[str, Curve], method: str) -> None:
    """Draw tokens per second over rounds, or over cycles where the curve has them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2 * len(curves)), layout="constrained")
    for row, (name, curve) in enumerate(curves.items(), start=1):
        axes = figure.add_subplot(len(curves), 1, row)
        along = "cycles" if curve and "cycles" in curve[0] else "round"
        for key in ("train/tokens_per_s", "val/tokens_per_s"):
            if curve and key in curve[0]:
                axes.plot([point[along] for point in curve], [point[key] for point in curve], label=key)
        axes.set(xlabel=along, ylabel="tokens/s, replayed", title=f"{method}: {name}")
        axes.legend()
    figure.savefig(path)
