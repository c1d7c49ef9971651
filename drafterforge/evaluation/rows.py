"""Rows of `report.json`: what each method made of all requests, and of those of each domain.

Other tools read the keys of a row (DESIGN 6), so they stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.statistics import bootstrap_macro_ratio, bootstrap_ratio, holm, macro_ratio
from drafterforge.runtime.batch import Generation

ALL = "all"  # domain of rows over several domains
STEPS = ("prefill", "draft", "verify", "select", "schedule", "host", "total")
MEGABYTE = 1e6
LEAST_PAIRS = 6  # prompts below which a paired test says nothing


def tokens_per_s(generations: Sequence[Generation]) -> float:
    """All tokens over all seconds, prefill included."""
    return sum(len(one.tokens) for one in generations) / sum(one.time_s["total"] for one in generations)


def speedup_interval(generations: Sequence[Generation], baseline: Sequence[Generation]) -> list[float]:
    """95 % bootstrap interval of the ratio of totals, prompts resampled in pairs."""
    return [round(bound, 4) for bound in bootstrap_ratio(timed_pairs(generations, baseline))]


def timed_pairs(
    generations: Sequence[Generation], baseline: Sequence[Generation]
) -> list[tuple[float, float, float, float]]:
    """Tokens and seconds of each prompt, of the method and of the baseline."""
    return [
        (len(one.tokens), one.time_s["total"], len(base.tokens), base.time_s["total"])
        for one, base in zip(generations, baseline, strict=True)
    ]


def paired_p(generations: Sequence[Generation], baseline: Sequence[Generation]) -> float | None:
    """Wilcoxon signed-rank p of per-prompt tokens/s, two-sided; None for fewer than six prompts."""
    ours, theirs = ([len(one.tokens) / one.time_s["total"] for one in many] for many in (generations, baseline))
    if len(ours) < LEAST_PAIRS or ours == theirs:
        return None
    return float(wilcoxon(ours, theirs).pvalue)


def build_row(
    method: Method,
    generations: Sequence[Generation],
    baseline: Sequence[Generation],
    *,
    domain: str,
    mismatches: int,
    dtype: str,
    numerics: str = "fast",
) -> dict[str, Any]:
    """One row: a method on a domain.  `baseline`: autoregressive decoding of the same prompts."""
    cycles = [cycle for one in generations for cycle in one.cycles]
    emitted = sum(cycle.accept_length for cycle in cycles)
    drafted = sum(cycle.depth for cycle in cycles)
    is_baseline = method.name == AUTOREGRESSIVE
    static = method.selector == "static"
    rate = tokens_per_s(generations)
    return {
        "method": method.name,
        "selector": method.selector,
        "scheduler": method.scheduler,
        "drafters": method.drafters,
        "domain": domain,
        "temperature": 0.0,
        "batch_size": 1,
        "num_prompts": len(generations),
        "num_tokens": sum(len(one.tokens) for one in generations),
        "num_cycles": len(cycles),
        "mat": round(emitted / len(cycles), 4) if cycles else 1.0,
        "accept_rate": round((emitted - len(cycles)) / drafted, 4) if drafted else None,
        "tokens_per_s": round(rate, 3),
        "speedup": round(rate / tokens_per_s(baseline), 4),
        "speedup_ci95": None if is_baseline else speedup_interval(generations, baseline),
        "wilcoxon_p": None if is_baseline else paired_p(generations, baseline),
        "mismatches": mismatches,
        "dtype": dtype,
        "numerics": numerics,
        "regret_cycles": 0.0 if static else None,  # one static drafter is the best static drafter in hindsight
        "regret_tokens": 0.0 if static else None,
        "time_s": {step: round(sum(one.time_s.get(step, 0.0) for one in generations), 4) for step in STEPS},
    }


def timed_rows(
    measurements: Sequence[Measurement],
    mismatches: Sequence[Mapping[str, Any]],
    best_cycles: Mapping[int, int],
    by_domain: bool = True,
) -> list[dict[str, Any]]:
    """Rows of all that was timed.

    mismatches: as the report lists them.  best_cycles: of each request with its best static drafter, where known.
    by_domain: also a row for every domain.
    """
    rows: list[dict[str, Any]] = []
    for section in sections(one for one in measurements if one.source == "live"):
        domains = sorted({one.domain for one in section})
        rows += _rows(section, mismatches, best_cycles, ALL if len(domains) > 1 else domains[0], section)
        for domain in domains if by_domain and len(domains) > 1 else ():
            rows += _rows([one for one in section if one.domain == domain], mismatches, best_cycles, domain, section)
    corrected = holm([row["wilcoxon_p"] for row in rows])
    return [row | {"wilcoxon_p_holm": p} for row, p in zip(rows, corrected, strict=True)]


def per_request(measurements: Sequence[Measurement]) -> dict[str, list[list[float]]]:
    """Tokens, cycles and seconds of every timed request, by method, as the report's curve `per_request` has them."""
    by_method: dict[str, list[list[float]]] = {}
    for one in sorted((one for one in measurements if not one.axis), key=lambda one: one.group):
        by_method.setdefault(one.method, []).append([one.num_tokens, len(one.cycles), round(one.seconds, 6)])
    return by_method


def sections(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Measurements that were made side by side: of one temperature, batch size and value on an axis."""
    by_key: dict[tuple, list[Measurement]] = {}
    for one in measurements:
        by_key.setdefault((one.axis, one.at, one.temperature, _batch_size(one)), []).append(one)
    return list(by_key.values())


def _batch_size(measurement: Measurement) -> int:
    return 1 if not measurement.axis else len(measurement.answers)


def _rows(
    measurements: Sequence[Measurement],
    mismatches: Sequence[Mapping[str, Any]],
    best_cycles: Mapping[int, int],
    domain: str,
    section: Sequence[Measurement],
) -> Iterator[dict[str, Any]]:
    """A row for every method, in the order of the section."""
    by_method: dict[str, list[Measurement]] = {one.method: [] for one in section}
    for one in sorted(measurements, key=lambda one: one.group):
        by_method[one.method].append(one)
    baseline = [as_one_answer(one) for one in by_method[AUTOREGRESSIVE]]
    for name, parts in by_method.items():
        first, answers = parts[0], [as_one_answer(one) for one in parts]
        requests = {request.request for one in parts for request in one.requests}
        wrong = [
            mismatch
            for mismatch in mismatches
            if mismatch["method"] == name and mismatch["prompt"] in requests and is_of_section(mismatch, first)
        ]
        row = build_row(
            Method(name, None, first.selector, first.scheduler, first.drafters),
            answers,
            baseline,
            domain=domain,
            mismatches=sum(not mismatch["rerun"] for mismatch in wrong),
            dtype=first.dtype,
            numerics=first.numerics,
        )
        row |= {"temperature": first.temperature, "batch_size": _batch_size(first), "source": "live"}
        row |= {"num_prompts": sum(len(one.answers) for one in parts), **regret(parts, best_cycles)}
        row |= {"axis": first.axis, "at": first.at} if first.axis else {}
        peaks = [one.peak_bytes for one in parts if one.peak_bytes is not None]
        row["peak_mb"] = round(max(peaks) / MEGABYTE, 2) if peaks else None
        row |= macro_speedup(answers, baseline if row["speedup_ci95"] else None)
        if first.external:  # another program's text may differ from ours
            row |= {"mismatches": None, "other_text": len(wrong), "external": True}
        yield row


def macro_speedup(generations: Sequence[Generation], baseline: Sequence[Generation] | None) -> dict[str, Any]:
    """The mean of each prompt's speed-up, in which a long answer weighs no more than a short one."""
    if baseline is None:
        return {"speedup_macro": None, "speedup_macro_ci95": None}
    pairs = timed_pairs(generations, baseline)
    bounds = [round(bound, 4) for bound in bootstrap_macro_ratio(pairs)]
    return {"speedup_macro": round(macro_ratio(pairs), 4), "speedup_macro_ci95": bounds}


def is_of_section(mismatch: Mapping[str, Any], measurement: Measurement) -> bool:
    """Whether a mismatch was found in the measurement's section."""
    section = measurement.axis, measurement.at, measurement.temperature
    return (mismatch.get("axis", ""), mismatch.get("at", 0.0), mismatch.get("temperature", 0.0)) == section


def as_one_answer(measurement: Measurement) -> Generation:
    """Requests decoded together as one answer, whose time is the clock's."""
    longest = max(measurement.answers, key=lambda one: one.time_s.get("total", 0.0))
    tokens = [token for one in measurement.answers for token in one.tokens]
    times = longest.time_s | {"total": measurement.seconds}
    return Generation([], tokens, cycles=measurement.cycles, stop_reason=longest.stop_reason, time_s=times)


def regret(measurements: Sequence[Measurement], best_cycles: Mapping[int, int]) -> dict[str, float | None]:
    """Cycles a request, and tokens, that the best static drafter of each would have saved; None where unknown."""
    answered = [
        (request.request, answer)
        for one in measurements
        for request, answer in zip(one.requests, one.answers, strict=True)
    ]
    known = [(best_cycles[index], answer) for index, answer in answered if index in best_cycles and answer.cycles]
    first = measurements[0]
    if not known or first.external or first.axis or first.selector == "none":
        return {"regret_cycles": None, "regret_tokens": None}
    cycles = np.array([len(answer.cycles) for _, answer in known])
    least = np.array([count for count, _ in known])
    tokens = np.array([len(answer.tokens) - 1 for _, answer in known])
    lost = cycles - least
    return {
        "regret_cycles": round(float(lost.mean()), 4),
        "regret_tokens": round(float((lost * tokens / least).mean()), 4),
    }
