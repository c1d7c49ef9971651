"""One sentence that tells whether a policy is shown to beat the best static tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafterforge.evaluation.rows import MIN_PAIRS
from drafterforge.reporting.reader import count, number, text
from drafterforge.reporting.verdict import SIGNIFICANT

Row = Mapping[str, Any]


def beats_best_static(rows: Sequence[Row], method: str) -> bool:
    """Whether live decoding shows that the method of this name is faster than the best static tree."""
    row = _row_of(rows, method)
    gain, p = number(row.get("over_best_static")), number(row.get("p_over_best_static"))
    return gain is not None and gain > 1 and p is not None and p < SIGNIFICANT


def policy_verdict(rows: Sequence[Row], method: str) -> str:
    """Compare the method of this name with the best static tree, as decoded live."""
    row = _row_of(rows, method)
    gain, p = number(row.get("over_best_static")), number(row.get("p_over_best_static"))
    num_prompts = count(row.get("num_prompts"))
    if gain is None:
        return f"{method} is not shown to beat the best static tree: nothing was decoded live"
    negation = "" if beats_best_static(rows, method) else "not "
    figures = f"{100 * (gain - 1):+.1f} % tokens/s live on {num_prompts} prompt{'' if num_prompts == 1 else 's'}"
    if p is not None:
        figures += f", p = {p:.2g}"
    elif num_prompts < MIN_PAIRS:
        figures += f"; a test needs {MIN_PAIRS} prompts, type live.num_prompts={MIN_PAIRS} or more"
    return f"{method} is {negation}shown to beat the best static tree: {figures}"


def seeds_sentence(spread: Mapping[str, Any]) -> str:
    """The mean and spread over training seeds, see `spread_over_seeds`."""
    parts = []
    for where in ("replayed", "live"):
        if where in spread:
            figures = spread[where]
            values = ", ".join(f"{value:.3f}" for value in figures["values"])
            parts.append(f"{where} {figures['mean']:.3f}x ± {figures['sd']:.3f} ({values})")
    text = f"tokens/s over the best static tree, mean and deviation of {len(spread['seeds'])} seeds: {'; '.join(parts)}"
    if bounds := spread.get("live", {}).get("ci95"):
        low, high = bounds
        text += f", 95 % [{low:.3f}, {high:.3f}]"
    return text


def _row_of(rows: Sequence[Row], method: str) -> Row:
    return next((row for row in rows if text(row.get("method")) == method), {})
