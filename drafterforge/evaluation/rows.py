"""Rows of `report.json`: figures of each method over all requests and by domain.  Other tools read their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from drafterforge.config.evaluation import ALL
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.methods import AUTOREGRESSIVE, INVARIANT, Method
from drafterforge.evaluation.statistics import (
    bootstrap_macro_ratio,
    bootstrap_ratio,
    holm,
    interval_of,
    macro_ratio,
)
from drafterforge.runtime.rows import Generation

ALL_REQUESTS, OLD_PROMPTS = "all requests", "other domains afterwards"  # of a replay of traffic; other parts overlap
STEPS = ("prefill", "draft", "verify", "select", "schedule", "host", "total")
MEGABYTE = 1e6
MIN_PAIRS = 6  # prompts that a paired test needs


def tokens_per_s(generations: Sequence[Generation]) -> float:
    """Total tokens over total seconds, prefill included."""
    return sum(len(answer.tokens) for answer in generations) / sum(answer.time_s["total"] for answer in generations)


def speedup_interval(generations: Sequence[Generation], baseline: Sequence[Generation]) -> list[float] | None:
    """95 % bootstrap interval of the ratio of totals, prompts resampled in pairs; None for too few pairs."""
    return interval_of(bootstrap_ratio, timed_pairs(generations, baseline))


def timed_pairs(
    generations: Sequence[Generation], baseline: Sequence[Generation]
) -> list[tuple[float, float, float, float]]:
    """(tokens, seconds, baseline tokens, baseline seconds) of each prompt."""
    return [
        (len(answer.tokens), answer.time_s["total"], len(reference.tokens), reference.time_s["total"])
        for answer, reference in zip(generations, baseline, strict=True)
    ]


def paired_p(generations: Sequence[Generation], baseline: Sequence[Generation]) -> float | None:
    """Wilcoxon signed-rank p of per-prompt tokens/s, two-sided; None for fewer than six prompts."""
    rates, baseline_rates = (
        [len(answer.tokens) / answer.time_s["total"] for answer in answers] for answers in (generations, baseline)
    )
    if len(rates) < MIN_PAIRS or rates == baseline_rates:
        return None
    return float(wilcoxon(rates, baseline_rates).pvalue)


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
    """The row of a method on a domain.  baseline: autoregressive decoding of the same prompts."""
    cycles = [cycle for answer in generations for cycle in answer.cycles]
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
        "num_tokens": sum(len(answer.tokens) for answer in generations),
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
        "regret_cycles": 0.0 if static else None,  # one drafter has no other to regret
        "regret_tokens": 0.0 if static else None,
        "time_s": {step: round(sum(answer.time_s.get(step, 0.0) for answer in generations), 4) for step in STEPS},
    }


def timed_rows(
    measurements: Sequence[Measurement],
    mismatches: Sequence[Mapping[str, Any]],
    best_cycles: Mapping[int, int],
    by_domain: bool = True,
) -> list[dict[str, Any]]:
    """Rows of live measurements.

    P values are corrected over the methods of a section, and over its rows of single domains, which are another
    question.  Plain decoding in other numerics is not compared with itself.
    mismatches: the curve of the report.  best_cycles: of each request with its best static drafter, where replayed.
    by_domain: also a row for every domain, but not on an axis.
    """
    rows: list[dict[str, Any]] = []

    def add(section_rows: list[dict[str, Any]]) -> None:
        corrected = holm([None if row["method"] == INVARIANT else row["wilcoxon_p"] for row in section_rows])
        rows.extend(row | {"wilcoxon_p_holm": p} for row, p in zip(section_rows, corrected, strict=True))

    for section in sections(m for m in measurements if m.source == "live"):
        domains = sorted({measurement.domain for measurement in section})
        add([*_rows(section, mismatches, best_cycles, ALL if len(domains) > 1 else domains[0], section)])
        of_domains: list[dict[str, Any]] = []
        for domain in domains if by_domain and not section[0].axis and len(domains) > 1 else ():
            part = [measurement for measurement in section if measurement.domain == domain]
            of_domains += _rows(part, mismatches, best_cycles, domain, section)
        add(of_domains)
    return rows


def per_request(measurements: Sequence[Measurement]) -> dict[str, list[list[float]]]:
    """The curve `per_request`: tokens, cycles and seconds of every timed request, by method."""
    by_method: dict[str, list[list[float]]] = {}
    for measurement in sorted((m for m in measurements if not m.axis), key=lambda m: m.group):
        figures = [measurement.num_tokens, len(measurement.cycles), round(measurement.seconds, 6)]
        by_method.setdefault(measurement.method, []).append(figures)
    return by_method


def sections(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Measurements grouped by temperature, batch size and value on an axis; a group was measured interleaved."""
    by_key: dict[tuple, list[Measurement]] = {}
    for measurement in measurements:
        key = measurement.axis, measurement.at, measurement.temperature, _batch_size(measurement)
        by_key.setdefault(key, []).append(measurement)
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
    by_method: dict[str, list[Measurement]] = {measurement.method: [] for measurement in section}
    for measurement in sorted(measurements, key=lambda m: m.group):
        by_method[measurement.method].append(measurement)
    baseline = [as_one_answer(measurement) for measurement in by_method[AUTOREGRESSIVE]]
    for name, parts in by_method.items():
        first, answers = parts[0], [as_one_answer(measurement) for measurement in parts]
        requests = {request.request for measurement in parts for request in measurement.requests}
        differing = [
            mismatch
            for mismatch in mismatches
            if mismatch["method"] == name and mismatch["prompt"] in requests and is_of_section(mismatch, first)
        ]
        row = build_row(
            Method(name, None, first.selector, first.scheduler, first.drafters),
            answers,
            baseline,
            domain=domain,
            mismatches=sum(not mismatch["rerun"] for mismatch in differing),
            dtype=first.dtype,
            numerics=first.numerics,
        )
        row |= {"temperature": first.temperature, "batch_size": _batch_size(first), "source": "live"}
        row |= {"num_prompts": sum(len(measurement.answers) for measurement in parts), **regret(parts, best_cycles)}
        row |= {"axis": first.axis, "at": first.at} if first.axis else {}
        peaks = [measurement.peak_bytes for measurement in parts if measurement.peak_bytes is not None]
        row["peak_mb"] = round(max(peaks) / MEGABYTE, 2) if peaks else None
        row |= macro_speedup(answers, None if name == AUTOREGRESSIVE else baseline)
        if first.external:  # the text of another program may differ
            row |= {"mismatches": None, "other_text": len(differing), "external": True}
        yield row


def macro_speedup(generations: Sequence[Generation], baseline: Sequence[Generation] | None) -> dict[str, Any]:
    """Mean of the prompts' speed-ups, in which long and short answers weigh alike."""
    if baseline is None:
        return {"speedup_macro": None, "speedup_macro_ci95": None}
    pairs = timed_pairs(generations, baseline)
    bounds = interval_of(bootstrap_macro_ratio, pairs)
    return {"speedup_macro": round(macro_ratio(pairs), 4), "speedup_macro_ci95": bounds}


def is_of_section(mismatch: Mapping[str, Any], measurement: Measurement) -> bool:
    section = measurement.axis, measurement.at, measurement.temperature, len(measurement.answers)
    keys = {"axis": "", "at": 0.0, "temperature": 0.0, "batch_size": section[-1]}
    return tuple(mismatch.get(key, default) for key, default in keys.items()) == section


def as_one_answer(measurement: Measurement) -> Generation:
    """Requests decoded together as one answer with their wall-clock time."""
    longest = max(measurement.answers, key=lambda answer: answer.time_s.get("total", 0.0))
    tokens = [token for answer in measurement.answers for token in answer.tokens]
    times = longest.time_s | {"total": measurement.seconds}
    return Generation([], tokens, cycles=measurement.cycles, stop_reason=longest.stop_reason, time_s=times)


def regret(measurements: Sequence[Measurement], best_cycles: Mapping[int, int]) -> dict[str, float | None]:
    """Mean cycles and tokens per request lost to its best static drafter; None where that is unknown."""
    answered = [
        (request.request, answer)
        for measurement in measurements
        for request, answer in zip(measurement.requests, measurement.answers, strict=True)
    ]
    compared = [(best_cycles[index], answer) for index, answer in answered if index in best_cycles and answer.cycles]
    first = measurements[0]
    if not compared or first.external or first.axis or first.selector == "none":
        return {"regret_cycles": None, "regret_tokens": None}
    cycles = np.array([len(answer.cycles) for _, answer in compared])
    least = np.array([count for count, _ in compared])
    tokens = np.array([len(answer.tokens) - 1 for _, answer in compared])
    lost = cycles - least
    return {
        "regret_cycles": round(float(lost.mean()), 4),
        "regret_tokens": round(float((lost * tokens / least).mean()), 4),
    }
