"""Methods that are measured: an engine and its name in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.evaluation import AUTOREGRESSIVE
from drafterforge.config.hints import target_flags
from drafterforge.evaluation.requests import Request
from drafterforge.runtime.engine import Engine

INVARIANT = f"{AUTOREGRESSIVE}, invariant"  # plain decoding in invariant numerics


@dataclass
class Method:
    """An engine under test and its name in the report."""

    name: str
    engine: Engine | Any  # anything with `generate(prompts, max_new_tokens, sampling)` and `numerics`
    selector: str = "none"
    scheduler: str = "none"
    drafters: list[str] = field(default_factory=list)
    experts: Mapping[str, Engine] = field(default_factory=dict)  # by name, for requests that have an expert
    external: bool = False  # another program, whose text may differ without being a fault
    cli_args: str = ""  # arguments of `generate` and `serve` that select it; empty: there are none

    def engine_of(self, request: Request) -> Engine:
        return self.experts.get(request.expert_name, self.engine)


def commands_of(cfg: EvaluateConfig, methods: Sequence[Method]) -> dict[str, str]:
    """The command that decodes with each method; methods without a command are left out."""
    temperature = f" temperature={cfg.suite.temperature:g}" if cfg.suite.temperature else ""
    flags = f"{target_flags(cfg)}{temperature}"
    return {
        method.name: f'drafterforge generate {method.cli_args}{flags} prompt="..."'
        for method in methods
        if method.cli_args
    }


def rotate(methods: Sequence[Method], turn: int) -> list[Method]:
    """The methods rotated by `turn`, so that machine drift affects all methods alike."""
    first = turn % len(methods)
    return [*methods[first:], *methods[:first]]
