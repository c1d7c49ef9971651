"""Prometheus metrics: requests, tokens, cycles and accept lengths by drafter, and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest

from drafterforge.runtime.rows import Cycle, Generation

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
LENGTHS = (*range(1, 13), 16, 24, 32)
CYCLE_STEPS = ("draft", "verify", "select", "schedule", "host")


class Metrics:
    """The metrics of one server, in their own registry."""

    def __init__(self, drafter: str) -> None:
        """drafter: label of cycles without a pool."""
        self.registry, self.drafter = CollectorRegistry(), drafter
        self.requests = self._new(
            Counter, "requests", "Requests by HTTP status; 499: the client closed the connection", "status"
        )
        self.answers = self._new(Counter, "answers", "Answers by the reason for which they ended", "reason")
        self.prompt_tokens = self._new(Counter, "prompt_tokens", "Tokens of prompts")
        self.generated_tokens = self._new(Counter, "generated_tokens", "Tokens of answers, end tokens included")
        self.cycles = self._new(Counter, "cycles", "Draft-verify cycles of answers by drafter", "drafter")
        self.accepted = self._new(Counter, "accepted_tokens", "Accepted drafted tokens by drafter", "drafter")
        self.accept_length = self._new(
            Histogram, "accept_length", "Tokens emitted by a cycle, bonus token included", "drafter", buckets=LENGTHS
        )
        self.step_seconds = self._new(
            Summary, "step_seconds", "Seconds of a step of a cycle for the whole batch", "step"
        )
        self.weight = self._new(
            Gauge,
            "selector_weight",
            "Probability with which the selector picks each drafter, mean over the answers of the last cycle",
            "drafter",
        )
        self.weighed: set[str] = set()  # drafters that have a weight
        self.first_token = self._new(
            Histogram, "first_token_seconds", "Seconds from arrival to the first token of an answer", buckets=SECONDS
        )
        self.answer_seconds = self._new(
            Histogram, "answer_seconds", "Seconds from arrival to the end of an answer", buckets=SECONDS
        )
        self.recorded = self._new(Counter, "recorded_answers", "Answers recorded to learn from")
        self.unrecorded = self._new(
            Counter, "unrecorded_answers", "Answers not recorded, by reason, while learn=on", "reason"
        )
        self.running = self._new(Gauge, "answers_running", "Answers being decoded")
        self.waiting = self._new(Gauge, "answers_waiting", "Answers waiting for a free row of the batch")

    def watch_learning(self, works: Callable[[], bool]) -> None:
        """Report whether recording and learning work."""
        up = self._new(Gauge, "learning_up", "1 while recording and learning work, 0 after one of them has failed")
        up.set_function(lambda: float(works()))

    def _new(self, kind: Callable[..., Any], name: str, text: str, *labels: str, **more: Any) -> Any:
        return kind(f"drafterforge_{name}", text, labels, registry=self.registry, **more)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def record_prefill(self, answer: Generation) -> None:
        """Record the prefill of an answer's prompt."""
        self.prompt_tokens.inc(len(answer.prompt))
        for step in ("prefill", "draft"):
            self.step_seconds.labels(step).observe(answer.time_s[step])

    def record_cycle(self, cycles: Sequence[Cycle], weights: Mapping[str, float]) -> None:
        """Record a cycle of the batch.  cycles: one per answer.  weights: probability of each drafter in a pool."""
        for step in CYCLE_STEPS:
            self.step_seconds.labels(step).observe(getattr(cycles[0], f"{step}_s"))
        for cycle in cycles:
            drafter = cycle.drafter or self.drafter
            self.cycles.labels(drafter).inc()
            self.accepted.labels(drafter).inc(cycle.accepted)
            self.accept_length.labels(drafter).observe(cycle.accept_length)
        for name in self.weighed - set(weights):  # a drafter that has left
            self.weight.remove(name)
        for name, weight in weights.items():
            self.weight.labels(name).set(weight)
        self.weighed = set(weights)
