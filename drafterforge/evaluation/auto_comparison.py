"""Compares `auto`, what decodes if no drafter is named, with the best fixed method and with plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drafterforge.config.evaluation import ALL
from drafterforge.config.names import AUTO
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.methods import AUTOREGRESSIVE
from drafterforge.evaluation.regret import answers_by_method, fixed_methods, regret_in_seconds
from drafterforge.evaluation.rows import sections, timed_pairs, tokens_per_s
from drafterforge.evaluation.statistics import bootstrap_ratio, interval_of, totals_ratio
from drafterforge.runtime.rows import Generation


def compare_auto(measurements: Sequence[Measurement], warm_up_prompts: int) -> dict[str, Any]:
    """The curve `auto`: ratios and regret on the stream, over all domains and by domain, and in every cell.

    warm_up_prompts: answered by each method before a cell was timed.
    """
    domains, cells = [], []
    for section in sections(measurements):
        first, by_domain = section[0], {ALL: section}
        if first.axis:
            cell = {"temperature": first.temperature, "batch_size": len(first.answers), "context": first.at}
            figures = ratios(section) | regret_in_seconds(section, by_prompt=False)
            cells.append(cell | {"warm_up_prompts": warm_up_prompts} | figures)
            continue
        for measurement in section:
            by_domain.setdefault(measurement.domain, []).append(measurement)
        parts = by_domain if len(by_domain) > 2 else {first.domain: section}
        domains += [
            {"domain": name} | ratios(parts[name]) | regret_in_seconds(parts[name], by_prompt=True)
            for name in sorted(parts, key=lambda name: (name != ALL, name))
        ]
    return {"domains": domains, "cells": cells}


def decisions_share(answers: Sequence[Generation]) -> float | None:
    """Share of the cycles' seconds in which `auto` decided: drafter, tree, waking, and learning from the cycle."""
    seconds = [answer.time_s for answer in answers]
    cycles = sum(part["total"] - part.get("prefill", 0.0) for part in seconds)
    return (
        round(sum(part.get(step, 0.0) for part in seconds for step in ("select", "schedule")) / cycles, 4)
        if cycles
        else None
    )


def ratios(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Tokens/s of `auto` over those of the best fixed method, chosen in hindsight, and over plain decoding.

    Plain decoding, in fast numerics, can be the best fixed method.
    """
    by_method = answers_by_method(measurements)
    answers = by_method[AUTO]
    best = max(fixed_methods(measurements), key=lambda name: tokens_per_s(by_method[name]))
    num_prompts = sum(len(measurement.answers) for measurement in measurements if measurement.method == AUTO)
    figures: dict[str, Any] = {"num_prompts": num_prompts, "best": best, "decisions": decisions_share(answers)}
    for key, name in (("over_best", best), ("over_plain", AUTOREGRESSIVE)):
        pairs = timed_pairs(answers, by_method[name])
        figures[key] = round(totals_ratio(pairs), 4)
        figures[f"{key}_ci95"] = interval_of(bootstrap_ratio, pairs)
    return figures
