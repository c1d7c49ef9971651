"""What is measured: an engine and how the report calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.hints import typed_target
from drafterforge.evaluation.requests import Request
from drafterforge.runtime.engine import Engine

AUTOREGRESSIVE = "autoregressive"


@dataclass
class Method:
    """An engine under test and how the report calls it."""

    name: str
    engine: Engine | Any  # whatever has `generate(prompts, max_new_tokens, sampling)` and `numerics`
    selector: str = "none"
    scheduler: str = "none"
    drafters: list[str] = field(default_factory=list)
    experts: Mapping[str, Engine] = field(default_factory=dict)  # by name, for requests that have an expert
    external: bool = False  # another program's: its text may differ, which is not a fault of ours
    typed: str = ""  # what `generate` and `serve` are given to decode with it; empty: they cannot

    def engine_of(self, request: Request) -> Engine:
        """The engine that decodes a request."""
        return self.experts.get(request.expert_name, self.engine)


def commands_of(cfg: EvaluateConfig, methods: Sequence[Method]) -> dict[str, str]:
    """The command that decodes with each method, where there is one."""
    target = typed_target(cfg)
    return {one.name: f'drafterforge generate {one.typed}{target} prompt="..."' for one in methods if one.typed}


def rotate(methods: Sequence[Method], turn: int) -> list[Method]:
    """The methods in the order of a turn: each turn begins with the next method, so that drift hits all alike."""
    first = turn % len(methods)
    return [*methods[first:], *methods[:first]]
