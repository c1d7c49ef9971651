"""Decode the same prompts with several methods, rotated prompt by prompt, so that drift hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drafterforge.evaluation.memory import peak
from drafterforge.evaluation.requests import Request
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import GREEDY, Sampling

AUTOREGRESSIVE = "autoregressive"
WARM_UP = 8  # tokens


@dataclass
class Method:
    """An engine under test and how the report calls it."""

    name: str
    engine: Engine | Any  # whatever has `generate(prompts, max_new_tokens, sampling)` and `numerics`
    selector: str = "none"
    scheduler: str = "none"
    drafters: list[str] = field(default_factory=list)
    experts: Mapping[str, Engine] = field(default_factory=dict)  # by name, for requests that have one of their own
    external: bool = False  # another program's: its text may differ, and is no fault of ours

    def engine_of(self, request: Request) -> Engine:
        """The engine that decodes a request."""
        return self.experts.get(request.own_expert, self.engine)


@dataclass
class Answered:
    """What a method made of requests that were decoded together."""

    answers: list[Generation]
    seconds: float  # by the clock, from the first prompt to the last token
    peak_bytes: int | None  # held beyond what was held before


def measure(
    methods: Sequence[Method],
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, list[Generation]]:
    """Generations of every method, in the order of `prompts`; each method is warmed up on the first prompt."""
    for method in methods if prompts else ():
        method.engine.generate([prompts[0]], min(max_new_tokens, WARM_UP))
    found: dict[str, list[Generation]] = {method.name: [] for method in methods}
    for index, prompt in enumerate(prompts):
        for method in rotated(methods, index):
            found[method.name] += method.engine.generate([prompt], max_new_tokens)
            progress()
    return found


def rotated(methods: Sequence[Method], turn: int) -> list[Method]:
    """The methods in the order of a turn."""
    first = turn % len(methods)
    return [*methods[first:], *methods[:first]]


def warm_up(methods: Sequence[Method], group: Sequence[Request], sampling: Sequence[Sampling]) -> None:
    """A few tokens with every method, experts included."""
    for method in methods:
        for engine in dict.fromkeys((method.engine, *method.experts.values())):
            engine.generate([request.tokens for request in group], WARM_UP, list(sampling))


def decode(method: Method, group: Sequence[Request], max_new_tokens: int, sampling: Sequence[Sampling]) -> Answered:
    """One method on requests that are decoded together."""
    engine = method.engine_of(group[0])
    with peak(engine.target.device) as held:
        began = time.perf_counter()
        answers = engine.generate([request.tokens for request in group], max_new_tokens, list(sampling))
        seconds = time.perf_counter() - began
    return Answered(answers, seconds, held.num_bytes)


def samplings(temperature: float, seed: int, count: int) -> list[Sampling]:
    """How each of `count` requests draws."""
    if temperature == 0:
        return [GREEDY] * count
    return [Sampling(temperature=temperature, seed=seed + place) for place in range(count)]
