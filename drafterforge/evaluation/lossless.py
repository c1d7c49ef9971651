"""Whether speculative output is the target's own, token for token; near ties are settled in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.targets.load import Target

NEAR_TIE = 1e-4  # a float32 difference at a smaller margin is decided by rounding, and rerun in float64


@dataclass(frozen=True)
class Mismatch:
    """The first difference on a prompt."""

    method: str
    prompt: int  # index
    position: int  # of the first token that differs
    margin: float  # the target's top-1 minus top-2 logit there
    rerun: bool  # settled in float64: equal there, so it does not count

    def as_dict(self) -> dict:
        """Plain values."""
        return asdict(self)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token in which two answers differ; None if they are equal."""
    if list(one) == list(other):
        return None
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


@torch.inference_mode()
def top2_margin(target: Target, tokens: Sequence[int]) -> float:
    """Difference of the two largest logits after `tokens`."""
    ids = torch.tensor([list(tokens)], device=target.device)
    states, _ = target.forward(ids, torch.arange(ids.shape[1], device=ids.device)[None], None)
    best = target.logits(states[0, -1]).float().topk(2).values
    return float(best[0] - best[1])


def find_mismatches(
    method: str,
    target: Target,
    answers: Sequence[Generation],
    references: Sequence[Generation],
    exact: Callable[[], tuple[Engine, Engine]] | None = None,
) -> list[Mismatch]:
    """Every prompt whose tokens differ from the reference, autoregressive decoding.

    exact() gives the method's and the autoregressive engine in float64, asked for only when a float32 difference stands
    at a near tie.
    """
    mismatches = []
    for index, (answer, reference) in enumerate(zip(answers, references, strict=True)):
        position = first_difference(answer.tokens, reference.tokens)
        if position is None:
            continue
        margin = top2_margin(target, [*reference.prompt, *reference.tokens[:position]])
        rerun = False
        if exact is not None and margin < NEAR_TIE:
            fast, plain = (engine.generate([reference.prompt], len(reference.tokens))[0] for engine in exact())
            rerun = fast.tokens == plain.tokens
        mismatches.append(Mismatch(method, index, position, margin, rerun))
    return mismatches


def count_mismatches(mismatches: Sequence[Mismatch]) -> int:
    """Mismatches that stand: those that float64 did not settle."""
    return sum(not mismatch.rerun for mismatch in mismatches)
