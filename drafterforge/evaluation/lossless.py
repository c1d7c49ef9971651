"""Compares speculative output with autoregressive decoding, token for token; near ties are rerun in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from drafterforge.config.progress import say
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.targets.load import Target

NEAR_TIE = 1e-4  # float32 differences at a smaller top-2 margin are rounding, and rerun in float64


@dataclass(frozen=True)
class Mismatch:
    """The first difference in the answer to a prompt."""

    method: str
    prompt: int  # index
    position: int  # of the first token that differs
    margin: float  # the target's top-1 minus top-2 logit there
    rerun: bool  # the answers are equal in float64, so that it does not count

    def as_dict(self) -> dict:
        return asdict(self)


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token that differs; None if the answers are equal."""
    if list(tokens) == list(reference):
        return None
    return next(
        (i for i, (a, b) in enumerate(zip(tokens, reference, strict=False)) if a != b),
        min(len(tokens), len(reference)),
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
    draws: Sequence[Sampling] | None = None,
) -> list[Mismatch]:
    """A mismatch for each prompt whose tokens differ from the reference, autoregressive decoding.

    exact() returns the method's engine and the autoregressive engine in float64; called only for a float32 difference
    at a near tie, which counts if they do not fit in memory.  draws: sampling of each answer; None: greedy.  Above
    temperature 0 any draw may lie at the border of two tokens.
    """
    mismatches = []
    for index, (answer, reference) in enumerate(zip(answers, references, strict=True)):
        position = first_difference(answer.tokens, reference.tokens)
        if position is None:
            continue
        margin = top2_margin(target, [*reference.prompt, *reference.tokens[:position]])
        sampling, rerun = draws[index] if draws else GREEDY, False
        if exact is not None and (sampling.temperature > 0 or margin < NEAR_TIE):
            try:
                prompt, count = [reference.prompt], len(reference.tokens)
                fast, plain = (engine.generate(prompt, count, sampling)[0] for engine in exact())
                rerun = fast.tokens == plain.tokens
            except (torch.OutOfMemoryError, MemoryError):
                say(f"float64 does not fit in memory, so near ties of {method} count as mismatches")
                exact = None  # it will not fit for the next prompt, either
        mismatches.append(Mismatch(method, index, position, margin, rerun))
    return mismatches


class PlainComparison:
    """Compares answers with plain decoding in the same numerics.

    An answer equal to the timed one, which is plain decoding in the fast numerics, is right.  Any other answer in
    other numerics is compared with plain decoding in these, which is run for it.  Near ties of float32 are decoded
    again in float64.
    """

    def __init__(self, target: Target, numerics: str, max_new_tokens: int) -> None:
        """numerics: of the answers."""
        self.target, self.max_new_tokens = target, max_new_tokens
        self.plain = None if numerics == "fast" else Engine(target, numerics=numerics)
        self.fits = True  # the target in float64 in memory, as far as is known

    def mismatches(
        self,
        method: str,
        answers: Sequence[Generation],
        references: Sequence[Generation],
        exact: Callable[[], tuple[Engine, Engine]],
        draws: Sequence[Sampling] | None = None,
    ) -> list[Mismatch]:
        """See `find_mismatches`.  references: plain decoding in the fast numerics.  exact: called in float32 only."""

        def float64_engines() -> tuple[Engine, Engine]:
            if not self.fits:
                raise MemoryError  # without loading it again
            self.fits = False  # if the next line fails
            engines = exact()
            self.fits = True
            return engines

        samplings = draws or [GREEDY] * len(answers)
        expected = [self._expected(*each) for each in zip(answers, references, samplings, strict=True)]
        rerun = float64_engines if self.target.dtype == torch.float32 else None
        return find_mismatches(method, self.target, answers, expected, rerun, samplings)

    def _expected(self, answer: Generation, reference: Generation, sampling: Sampling) -> Generation:
        """Plain decoding in the numerics of an answer."""
        if self.plain is None or answer.tokens == reference.tokens:
            return reference
        return self.plain.generate([reference.prompt], self.max_new_tokens, sampling)[0]


def count_mismatches(mismatches: Sequence[Mismatch]) -> int:
    """Number of mismatches that remain in float64."""
    return sum(not mismatch.rerun for mismatch in mismatches)
