"""One sentence that tells whether a trained drafter drafts better than those it could replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafterforge.config.names import parse_hybrid
from drafterforge.data.prompts import MIN_VERDICT
from drafterforge.evaluation.statistics import bootstrap_ratio
from drafterforge.reporting.reader import curves_of, mapping, number, numbers, rows_of, text

Report = Mapping[str, Any]
PLAIN = "autoregressive"  # method of plain decoding


def drafter_verdict(report: Report, trained: str) -> str:
    """Compare the trained drafter with the best other drafter alone; empty if the report has no other.

    Drafters of one kind have the same trees, so the ratio of their MATs, with a 95 % interval over prompts, decides:
    it is free of timing noise.
    """
    references = [row for row in rows_of(report) if text(row.get("method")).endswith(" alone")]
    references = [row for row in references if row.get("method") != f"{trained} alone" and number(row.get("mat"))]
    cycles = cycles_of(report, f"{trained} alone")
    if not references or not cycles:
        return ""
    best = max(references, key=lambda row: number(row["mat"]))
    name, reference = text(best["method"]).removesuffix(" alone"), cycles_of(report, text(best["method"]))
    if len(reference) != len(cycles):
        return ""
    pairs = [(*ours, *theirs) for ours, theirs in zip(cycles, reference, strict=True)]
    mats = [number(row["mat"]) for row in rows_of(report) if row.get("method") == f"{trained} alone"]
    mats += [number(best["mat"])]
    figures = f"{mats[0]:.2f} tokens per cycle against {mats[1]:.2f}, {mats[0] / mats[1]:.2f}x"
    if len(pairs) < MIN_VERDICT:
        few = f"{len(pairs)} prompt{'s are' if len(pairs) > 1 else ' is'} too few for a verdict"
        return f"`{trained}` is not shown to draft better than `{name}`: {figures}, but {few}; test more prompts"
    fastest = fastest_drafter(report)
    advice = f"the fastest row is {'' if fastest else 'plain decoding: '}drafter={fastest}"
    low, high = bootstrap_ratio(pairs)
    figures += f" (95 % interval {low:.2f}-{high:.2f}, {len(pairs)} prompts)"
    if low > 1:
        return f"`{trained}` drafts better than `{name}`: {figures}; {advice}"
    if high < 1:
        return f"`{trained}` drafts worse than `{name}`: {figures}; {advice}"
    return f"`{trained}` is not shown to draft better than `{name}`: {figures}; {advice}; test more prompts to be sure"


def fastest_drafter(report: Report) -> str:
    """The value of `drafter=` of the report's fastest row; empty for plain decoding."""
    speeds = {}
    for row in rows_of(report):
        method = text(row.get("method"))
        name = method.removesuffix(" alone")
        if name != method or parse_hybrid(name) or method == PLAIN:
            speeds[name if method != PLAIN else ""] = number(row.get("tokens_per_s")) or 0.0
    return max(speeds, key=speeds.__getitem__, default="")


def cycles_of(report: Report, method: str) -> Sequence[tuple[float, float]]:
    """Tokens and cycles of each request of a method; empty if the report does not have them."""
    entries = mapping(curves_of(report).get("per_request")).get(method)
    figures = [numbers(entry)[:2] for entry in entries] if isinstance(entries, list) else []
    return [(tokens, cycles) for tokens, cycles in figures] if all(len(f) == 2 and f[1] > 0 for f in figures) else []
