"""Rows of a report from its ledger: every method over all requests, and by domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from drafterforge.evaluation.contents import ALL
from drafterforge.evaluation.ledger import Entry
from drafterforge.evaluation.measure import AUTOREGRESSIVE, Method
from drafterforge.evaluation.report import build_row
from drafterforge.evaluation.statistics import bootstrap_macro_ratio, holm, macro_ratio
from drafterforge.runtime.batch import Generation

MEGABYTE = 1e6


def timed_rows(
    entries: Sequence[Entry], mismatches: Sequence[Mapping[str, Any]], best: Mapping[int, int], each: bool = True
) -> list[dict[str, Any]]:
    """Rows of all that was decoded against a clock.

    mismatches: as the report lists them.  best: cycles of each request with its best static drafter, where known.
    each: also a row for every domain.
    """
    rows: list[dict[str, Any]] = []
    for part in sections(entry for entry in entries if entry.source == "live"):
        domains = sorted({entry.domain for entry in part})
        rows += _rows(part, mismatches, best, ALL if len(domains) > 1 else domains[0], part)
        for domain in domains if each and len(domains) > 1 else ():
            rows += _rows([entry for entry in part if entry.domain == domain], mismatches, best, domain, part)
    corrected = holm([row["wilcoxon_p"] for row in rows])
    return [row | {"wilcoxon_p_holm": p} for row, p in zip(rows, corrected, strict=True)]


def sections(entries: Iterator[Entry]) -> list[list[Entry]]:
    """Entries that were measured side by side: of one temperature, batch size and place on an axis."""
    found: dict[tuple, list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.axis, entry.at, entry.temperature, _batch_size(entry)), []).append(entry)
    return list(found.values())


def _batch_size(entry: Entry) -> int:
    return 1 if not entry.axis else len(entry.answers)


def _rows(
    entries: Sequence[Entry],
    mismatches: Sequence[Mapping[str, Any]],
    best: Mapping[int, int],
    domain: str,
    section: Sequence[Entry],
) -> Iterator[dict[str, Any]]:
    """A row for every method, in the order of the section."""
    of: dict[str, list[Entry]] = {entry.method: [] for entry in section}
    for entry in sorted(entries, key=lambda one: one.group):
        of[entry.method].append(entry)
    baseline = [merged(entry) for entry in of[AUTOREGRESSIVE]]
    for name, own in of.items():
        first, asked = own[0], {one.request for entry in own for one in entry.asked}
        wrong = [one for one in mismatches if one["method"] == name and one["prompt"] in asked and same(one, first)]
        row = build_row(
            Method(name, None, first.selector, first.scheduler, first.drafters),
            [merged(entry) for entry in own],
            baseline,
            domain=domain,
            mismatches=sum(not one["rerun"] for one in wrong),
            dtype=first.dtype,
            numerics=first.numerics,
        )
        row |= {"temperature": first.temperature, "batch_size": _batch_size(first), "source": "live"}
        row |= {"num_prompts": sum(len(entry.answers) for entry in own), **regret(own, best)}
        row |= {"axis": first.axis, "at": first.at} if first.axis else {}
        held = [entry.peak_bytes for entry in own if entry.peak_bytes is not None]
        row["peak_mb"] = round(max(held) / MEGABYTE, 2) if held else None
        row |= macro([merged(entry) for entry in own], baseline if row["speedup_ci95"] else None)
        if first.external:  # another program's text is its own
            row |= {"mismatches": None, "other_text": len(wrong), "external": True}
        yield row


def macro(found: Sequence[Generation], baseline: Sequence[Generation] | None) -> dict[str, Any]:
    """The mean of the prompts' own speed-ups, in which a long answer weighs no more than a short one."""
    if baseline is None:
        return {"speedup_macro": None, "speedup_macro_ci95": None}
    pairs = [
        (len(one.tokens), one.time_s["total"], len(base.tokens), base.time_s["total"])
        for one, base in zip(found, baseline, strict=True)
    ]
    bounds = [round(bound, 4) for bound in bootstrap_macro_ratio(pairs)]
    return {"speedup_macro": round(macro_ratio(pairs), 4), "speedup_macro_ci95": bounds}


def same(mismatch: Mapping[str, Any], entry: Entry) -> bool:
    """Whether a mismatch was found in the entry's section."""
    own = entry.axis, entry.at, entry.temperature
    return (mismatch.get("axis", ""), mismatch.get("at", 0.0), mismatch.get("temperature", 0.0)) == own


def merged(entry: Entry) -> Generation:
    """Requests decoded together as one answer, whose time is the clock's."""
    longest = max(entry.answers, key=lambda one: one.time_s.get("total", 0.0))
    tokens = [token for one in entry.answers for token in one.tokens]
    times = longest.time_s | {"total": entry.seconds}
    return Generation([], tokens, cycles=entry.cycles, stop_reason=longest.stop_reason, time_s=times)


def regret(entries: Sequence[Entry], best: Mapping[int, int]) -> dict[str, float | None]:
    """Cycles a request, and tokens, that the best static drafter of each would have saved; None where unknown."""
    told = [(one.request, answer) for entry in entries for one, answer in zip(entry.asked, entry.answers, strict=True)]
    known = [(best[place], answer) for place, answer in told if place in best and answer.cycles]
    if not known or entries[0].external or entries[0].axis or entries[0].selector == "none":
        return {"regret_cycles": None, "regret_tokens": None}
    cycles = np.array([len(answer.cycles) for _, answer in known])
    least = np.array([one for one, _ in known])
    tokens = np.array([len(answer.tokens) - 1 for _, answer in known])
    lost = cycles - least
    return {
        "regret_cycles": round(float(lost.mean()), 4),
        "regret_tokens": round(float((lost * tokens / least).mean()), 4),
    }
