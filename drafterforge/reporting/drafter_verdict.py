"""One sentence that tells whether a trained drafter drafts better than those it could replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drafterforge.config.evaluation import MIN_VERDICT
from drafterforge.config.names import domain_of, parse_hybrid
from drafterforge.evaluation.statistics import bootstrap_ratio
from drafterforge.reporting.reader import curves_of, mapping, number, numbers, rows_of, text

Report = Mapping[str, Any]
PLAIN = "autoregressive"  # method of plain decoding


@dataclass(frozen=True)
class Pairing:
    """A trained drafter and the best other one, alone on the same requests."""

    trained: str
    reference: str
    mats: tuple[float, float]  # in that order
    pairs: list[tuple[float, float, float, float]]  # tokens and cycles of the one, then of the other

    @property
    def bounds(self) -> tuple[float, float] | None:
        """95 % interval of the ratio of the MATs; None for too few prompts."""
        return bootstrap_ratio(self.pairs) if len(self.pairs) >= MIN_VERDICT else None

    @property
    def better(self) -> bool:
        """Whether the trained drafter is shown to draft better."""
        return self.bounds is not None and self.bounds[0] > 1


def pairing_of(report: Report, trained: str) -> Pairing | None:
    """The trained drafter and the best other drafter alone; None if the report has no other."""
    references = [row for row in rows_of(report) if text(row.get("method")).endswith(" alone")]
    references = [row for row in references if row.get("method") != f"{trained} alone" and number(row.get("mat"))]
    cycles = cycles_of(report, f"{trained} alone")
    if not references or not cycles:
        return None
    best = max(references, key=lambda row: number(row["mat"]))
    name, reference = text(best["method"]).removesuffix(" alone"), cycles_of(report, text(best["method"]))
    if len(reference) != len(cycles):
        return None
    mat = next(number(row["mat"]) for row in rows_of(report) if row.get("method") == f"{trained} alone")
    pairs = [(*ours, *theirs) for ours, theirs in zip(cycles, reference, strict=True) if ours[1] > 0 and theirs[1] > 0]
    if not pairs:
        return None
    return Pairing(trained, name, (mat, number(best["mat"])), pairs)


def drafter_verdict(report: Report, trained: str) -> str:
    """Compare the trained drafter with the best other drafter alone; empty if the report has no other.

    Drafters of one kind have the same trees, so the ratio of their MATs, with a 95 % interval over prompts, decides:
    it is free of timing noise.
    """
    pairing = pairing_of(report, trained)
    if pairing is None:
        return ""
    name, mats, pairs, bounds = pairing.reference, pairing.mats, pairing.pairs, pairing.bounds
    figures = f"{mats[0]:.2f} tokens per cycle against {mats[1]:.2f}, {mats[0] / mats[1]:.2f}x"
    if all(pair[:2] == pair[2:] for pair in pairs):
        return (
            f"`{trained}` drafts exactly as `{name}` on all {len(pairs)} prompts, {mats[0]:.2f} tokens per cycle: "
            f"keep `{name}`, test more prompts, or train on more prompts or for more steps"
        )
    if bounds is None:
        few = f"{len(pairs)} prompt{'s are' if len(pairs) > 1 else ' is'} too few for a verdict"
        figures += f", but {few}; test more prompts, and keep `{name}` until then"
        return f"`{trained}` is not shown to draft better than `{name}`: {figures}"
    figures += f" (95 % interval {bounds[0]:.2f}-{bounds[1]:.2f}, {len(pairs)} prompts)"
    drafter = recommended_drafter(report, trained)
    fastest = f"{'' if drafter else 'plain decoding: '}drafter={drafter}"
    if pairing.better:
        return f"`{trained}` drafts better than `{name}`: {figures}; the fastest row is {fastest}"
    advice = f"keep `{name}`; the fastest row without `{trained}` is {fastest}"
    if bounds[1] < 1:
        return f"`{trained}` drafts worse than `{name}`: {figures}; {advice}"
    return f"`{trained}` is not shown to draft better than `{name}`: {figures}; {advice}; test more prompts to be sure"


def recommended_drafter(report: Report, trained: str) -> str:
    """The value of `drafter=` of the report's fastest row; empty for plain decoding.

    Rows of the trained drafter count only if it is shown to draft better than the best other drafter alone.
    """
    pairing = pairing_of(report, trained)
    excluded = trained if pairing is not None and not pairing.better else None
    speeds = {}
    for row in rows_of(report):
        method = text(row.get("method"))
        name = method.removesuffix(" alone")
        is_drafter = name != method or parse_hybrid(name)
        if method == PLAIN or (is_drafter and domain_of(name) != excluded):
            speeds["" if method == PLAIN else name] = number(row.get("tokens_per_s")) or 0.0
    return max(speeds, key=speeds.__getitem__, default="")


def cycles_of(report: Report, method: str) -> Sequence[tuple[float, float]]:
    """Tokens and cycles of each request of a method, 0 of an answer of one token; empty if the report has none."""
    entries = mapping(curves_of(report).get("per_request")).get(method)
    figures = [numbers(entry)[:2] for entry in entries] if isinstance(entries, list) else []
    return [(tokens, cycles) for tokens, cycles in figures] if all(len(f) == 2 and f[1] >= 0 for f in figures) else []
