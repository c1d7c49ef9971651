"""Rows of a batch, their answers, and the times of their cycles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from drafterforge.kernels import gpu
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.runtime.prefill import Prefill
from drafterforge.runtime.row_outputs import RowOutputs
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.stopping import StopRule

STEPS = ("prefill", "draft", "verify", "select", "schedule", "host", "total")
TIMED = ("draft", "verify", "select", "schedule", "host")  # steps whose seconds add up to those of a cycle


@dataclass(frozen=True, slots=True)
class Cycle:
    """One draft and verification of one row; seconds are those of the whole batch."""

    depth: int  # drafted levels requested
    num_nodes: int  # nodes verified, root included
    accept_length: int  # tokens emitted, bonus included, cut at the end of the answer
    accepted: int = 0  # drafted tokens among them
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0  # acceptance, commit and bookkeeping
    select_s: float = 0.0  # choosing the drafter and evaluating all drafters
    drafter: str = ""  # name of the drafter; empty without a pool
    top_k: int = 0  # width requested
    schedule_s: float = 0.0  # choosing the tree's shape
    refresh_s: float = 0.0  # part of draft_s: the drafter reads the committed tokens


@dataclass
class Generation:
    """A finished or running answer."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)  # cut after the end token and at max_new_tokens
    text: str = ""  # without special tokens, cut before a stop string; empty without a tokenizer
    cycles: list[Cycle] = field(default_factory=list)
    stop_reason: str = ""  # eos | stop | length | context
    time_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))

    @property
    def mat(self) -> float:
        """Mean accept length of the cycles; 1 without cycles."""
        return sum(cycle.accept_length for cycle in self.cycles) / len(self.cycles) if self.cycles else 1.0


@dataclass
class Row:
    """One sequence being decoded."""

    answer: Generation
    rule: StopRule
    sampling: Sampling
    began: float
    length: int = 0  # committed tokens, without the root
    outputs: RowOutputs | None = None  # of the target, if they are recorded

    @property
    def text(self) -> list[int]:
        """Prompt and answer so far, root included."""
        return self.answer.prompt + self.answer.tokens

    def take(self, tokens: list[int]) -> list[int]:
        """Append the confirmed tokens that belong to the answer; returns them."""
        emitted = self.rule.take(tokens)
        self.answer.tokens.extend(emitted)
        self.answer.stop_reason = self.rule.stop_reason
        if self.rule.stream is not None:
            self.answer.text = self.rule.text
        return emitted


@dataclass(eq=False)
class Joining:
    """A row whose prompt is being read."""

    row: Row
    prefill: Prefill
    cache: KeyValueCache | None = None  # its own; None: a row of the batch's


class Mark(NamedTuple):
    """A moment between two steps of a cycle."""

    time: float  # of the host
    event: gpu.Event | None = None  # on the GPU, if the host does not wait for it

    def until(self, later: Mark) -> float:
        """Seconds to a later mark; GPU seconds if both have events."""
        if self.event is None or later.event is None:
            return later.time - self.time
        return self.event.elapsed_time(later.event) / 1e3
