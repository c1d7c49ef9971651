"""`curves.png` of a policy: what it learned, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[Mapping[str, float]]


def plot_curves(path: Path, curves: Mapping[str, Curve], method: str) -> None:
    """Learning curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2 * len(curves)), layout="constrained")
    for place, (name, curve) in enumerate(curves.items()):
        axes = figure.add_subplot(len(curves), 1, place + 1)
        along = "cycles" if curve and "cycles" in curve[0] else "round"
        for key in ("train/tokens_per_s", "val/tokens_per_s"):
            if curve and key in curve[0]:
                axes.plot([point[along] for point in curve], [point[key] for point in curve], label=key)
        axes.set(xlabel=along, ylabel="tokens/s, replayed", title=f"{method}: {name}")
        axes.legend()
    figure.savefig(path)
