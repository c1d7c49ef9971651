"""What Prometheus is told: tokens, cycles, what drafters were worth, and where the time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest

from drafterforge.runtime.batch import Cycle, Generation

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
LENGTHS = (*range(1, 13), 16, 24, 32)
CYCLE_STEPS = ("draft", "verify", "select", "schedule", "host")


class Metrics:
    """The figures of one server, in a registry of its own."""

    def __init__(self, drafter: str) -> None:
        """drafter: what cycles are filed under where there is no pool."""
        self.registry, self.drafter = CollectorRegistry(), drafter
        self.requests = self._new(Counter, "requests", "Requests by HTTP status; 499: the client hung up", "status")
        self.answers = self._new(Counter, "answers", "Answers by how they ended", "reason")
        self.prompt_tokens = self._new(Counter, "prompt_tokens", "Tokens of the prompts that were read")
        self.generated_tokens = self._new(Counter, "generated_tokens", "Tokens of answers, end tokens included")
        self.cycles = self._new(Counter, "cycles", "Cycles of answers by the drafter that drafted", "drafter")
        self.accepted = self._new(Counter, "accepted_tokens", "Drafted tokens that were accepted", "drafter")
        self.accept_length = self._new(
            Histogram, "accept_length", "Tokens that a cycle emitted, bonus included", "drafter", buckets=LENGTHS
        )
        self.step_seconds = self._new(Summary, "step_seconds", "Seconds of a step of the whole batch", "step")
        self.weight = self._new(
            Gauge,
            "selector_weight",
            "Law that the last cycle's drafters were picked by, mean of its answers",
            "drafter",
        )
        self.first_token = self._new(
            Histogram, "first_token_seconds", "From arrival to an answer's first token", buckets=SECONDS
        )
        self.answer_seconds = self._new(Histogram, "answer_seconds", "From arrival to an answer's end", buckets=SECONDS)
        self.running = self._new(Gauge, "answers_running", "Answers that are being decoded")
        self.waiting = self._new(Gauge, "answers_waiting", "Answers that wait for a place in the batch")

    def _new(self, kind: Callable[..., Any], name: str, text: str, *labels: str, **more: Any) -> Any:
        return kind(f"drafterforge_{name}", text, labels, registry=self.registry, **more)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)

    def read(self, answer: Generation) -> None:
        """A prompt was read, and its first token chosen."""
        self.prompt_tokens.inc(len(answer.prompt))
        for step in ("prefill", "draft"):
            self.step_seconds.labels(step).observe(answer.time_s[step])

    def cycled(self, cycles: Sequence[Cycle], weights: Mapping[str, float]) -> None:
        """A cycle of the batch: what it was to each answer, and the law that drafters were picked by."""
        for step in CYCLE_STEPS:
            self.step_seconds.labels(step).observe(getattr(cycles[0], f"{step}_s"))
        for cycle in cycles:
            drafter = cycle.drafter or self.drafter
            self.cycles.labels(drafter).inc()
            self.accepted.labels(drafter).inc(cycle.accepted)
            self.accept_length.labels(drafter).observe(cycle.accept_length)
        for name, weight in weights.items():
            self.weight.labels(name).set(weight)
