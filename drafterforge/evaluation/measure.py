"""Decode the same prompts with several methods, rotated prompt by prompt, so that drift hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine

AUTOREGRESSIVE = "autoregressive"


@dataclass
class Method:
    """An engine under test and how the report calls it."""

    name: str
    engine: Engine
    selector: str = "none"
    scheduler: str = "none"
    drafters: list[str] = field(default_factory=list)


def measure(
    methods: Sequence[Method],
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, list[Generation]]:
    """Generations of every method, in the order of `prompts`; each method is warmed up on the first prompt."""
    for method in methods if prompts else ():
        method.engine.generate([prompts[0]], min(max_new_tokens, 8))
    found: dict[str, list[Generation]] = {method.name: [] for method in methods}
    for index, prompt in enumerate(prompts):
        turn = index % len(methods)
        for method in (*methods[turn:], *methods[:turn]):
            found[method.name] += method.engine.generate([prompt], max_new_tokens)
            progress()
    return found
