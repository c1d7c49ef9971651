"""Regret in seconds: what a method takes beyond the fixed method that is fastest in hindsight.

A fixed method does not choose among drafters while it decodes: plain decoding, one drafter, the expert of each domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drafterforge.config.names import AUTO
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.method_factory import STATIC
from drafterforge.evaluation.methods import INVARIANT
from drafterforge.evaluation.rows import as_one_answer
from drafterforge.runtime.rows import Generation

PER_TOKENS = 1000  # regret is counted in seconds per so many tokens
FIXED_SELECTORS = ("none", STATIC)


def answers_by_method(measurements: Sequence[Measurement]) -> dict[str, list[Generation]]:
    """Answers of our methods, those decoded together as one; plain decoding in fast numerics."""
    by_method: dict[str, list[Generation]] = {}
    for measurement in sorted(measurements, key=lambda measurement: measurement.group):
        if measurement.method != INVARIANT and not measurement.external:
            by_method.setdefault(measurement.method, []).append(as_one_answer(measurement))
    return by_method


def fixed_methods(measurements: Sequence[Measurement]) -> list[str]:
    """Names of our fixed methods, plain decoding among them."""
    return list(
        dict.fromkeys(
            measurement.method
            for measurement in measurements
            if measurement.selector in FIXED_SELECTORS
            and not measurement.external
            and measurement.method not in (AUTO, INVARIANT)
        )
    )


def regret_in_seconds(measurements: Sequence[Measurement], by_prompt: bool) -> dict[str, Any]:
    """Regret of every method against the best fixed method of all prompts, reading of prompts included.

    by_prompt: also against the best fixed method of each prompt; part of that is luck, as it is the least of several
    measured times.
    """
    answers, fixed = answers_by_method(measurements), fixed_methods(measurements)
    seconds = {name: seconds_per_tokens(answers[name]) for name in answers}
    best = min(fixed, key=lambda name: seconds[name])
    figures: dict[str, Any] = {
        "best_fixed": best,
        "regret_s": {name: round(spent - seconds[best], 4) for name, spent in seconds.items()},
    }
    if by_prompt:
        prompts = zip(*(answers[name] for name in fixed), strict=True)
        least = seconds_per_tokens([min(candidates, key=_seconds_per_token) for candidates in prompts])
        figures["regret_s_by_prompt"] = {name: round(spent - least, 4) for name, spent in seconds.items()}
    return figures


def seconds_per_tokens(answers: Sequence[Generation]) -> float:
    """Seconds of answers per 1,000 of their tokens."""
    return (
        PER_TOKENS * sum(answer.time_s["total"] for answer in answers) / sum(len(answer.tokens) for answer in answers)
    )


def _seconds_per_token(answer: Generation) -> float:
    return answer.time_s["total"] / len(answer.tokens)
