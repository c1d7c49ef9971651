"""Learning and choosing for the requests of a server; each of vLLM's runners calls it between a cycle's passes.

Axes: N drafters, B requests, H hidden of the target, K drafted tokens, P = K + 1 most rows that a cycle commits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drafterforge.interop.vllm.advice import PromptAdvice
from drafterforge.interop.vllm.hybrids import Hybrids
from drafterforge.interop.vllm.judging import Guesses, Window
from drafterforge.interop.vllm.lookups import NO_GUESS
from drafterforge.interop.vllm.metrics import PoolMeter, metrics_folder
from drafterforge.interop.vllm.settings import PoolServing


class PoolSelection:
    """What is learned in each slot, on the device; slot `num_slots` belongs to rows that learn nothing."""

    def __init__(self, serving: PoolServing, num_arms: int, depth: int, num_slots: int, device: torch.device) -> None:
        """num_arms: drafters that can be chosen.  depth: K."""
        self.serving, self.num_arms, self.device = serving, num_arms, device
        self.guesses = Guesses.empty(num_slots + 1, num_arms, device)
        self.guesses.judged[-1] = torch.iinfo(torch.long).max
        self.selector = serving.selector(num_arms, depth, num_slots + 1, device)
        self.allowed = torch.ones((num_slots + 1, num_arms), dtype=torch.bool, device=device)
        self.advice = PromptAdvice(serving.router, serving.arms(num_arms), device) if serving.router else None
        self.prompts = torch.zeros(num_slots + 1, dtype=torch.long, device=device)  # tokens of each slot's prompt
        self.spare = torch.tensor(num_slots, device=device)
        num_stacked = len(serving.stacked)
        self.hybrids = Hybrids(num_stacked, num_arms, num_slots + 1, device) if num_arms > num_stacked else None
        folder = metrics_folder()
        self.meter = PoolMeter(serving.arms(num_arms), device, folder) if folder else None
        self.ended: float | None = None  # when the last selection ended; None: no cycle has begun

    def begin(self, slots: Tensor, num_prompt_tokens: Tensor, hints: Tensor, after_idle: bool = False) -> None:
        """Start requests in slots [B], blank.

        num_prompt_tokens: [B].  hints: see `hints`, [B, N].  after_idle: whether none ran until now, so that the time
        since the last selection is no cycle's.
        """
        self.ended = None if after_idle else self.ended
        self.guesses.begin(slots, num_prompt_tokens)
        self.prompts.index_copy_(0, slots, num_prompt_tokens)
        self.selector.begin(slots)
        self.allowed.index_copy_(0, slots, hints)

    def hints(self, sampling_params: Sequence[Any]) -> list[list[bool]]:
        """The drafters that the hints of requests allow, [B, N]; all, if the hint is of a drafter that cannot run."""
        rows = [self.serving.allowed(params)[: self.num_arms] for params in sampling_params]
        return [row if any(row) else [True] * self.num_arms for row in rows]

    def end(self, slots: Tensor) -> None:
        """End the requests in slots [B]."""
        self.selector.end(slots)

    def select(
        self,
        slots: Tensor,
        window: Window,
        guesses: Tensor,
        inputs: Tensor,
        positions: Tensor,
        depths: Tensor,
        features: Tensor | None = None,
        worths: Tensor | None = None,
        complete: bool = True,
    ) -> Tensor:
        """Judge the drafters of a cycle, learn, and choose the drafter of each request, [B].

        A drafter without a guess is chosen only if no drafter that the hint allows has one.
        guesses, inputs, positions: see `Guesses.judge`.  depths: drafted tokens that were verified, [B].  features: of
        the target at the newest rows, [B, 3H], if a prompt may have ended.  worths: see `Hybrids.combine`, where text
        can be looked up.  complete: whether the next cycle drafts K tokens.
        """
        began = time.perf_counter()
        hinted = self.allowed[slots]
        if self.hybrids:
            guesses = self.hybrids.combine(guesses, worths, hinted)
        judged = self.guesses.judge(slots, window, guesses, inputs, positions)
        self.selector.drop(torch.where(judged.gaps, slots, self.spare))
        self.selector.observe(slots, judged.hits, judged.counts, depths)
        if features is not None:
            self.advise(slots, positions[:, -1], features)
        ready = hinted & (guesses[:, :, -1].T != NO_GUESS)
        drafted = (judged.counts > 0) & (depths > 0)
        before = (self.hybrids or self.selector).arms[slots] if self.meter else None
        choice = self.selector.choose(slots, torch.where(ready.any(dim=1, keepdim=True), ready, hinted))
        if self.hybrids:
            self.hybrids.learn(slots, torch.where(drafted, judged.counts - 1, -1))
            choice = self.hybrids.choose(slots, choice, complete)
        if self.meter:
            self._count(torch.where(drafted, before, -1), choice, judged.counts, depths, slots, began)
        return choice

    def advise(self, slots: Tensor, newest: Tensor, features: Tensor) -> None:
        """Start requests whose prompts end with the router's advice.  newest: positions of their newest tokens, [B]."""
        if self.advice is not None:
            ends = newest == self.prompts[slots]
            self.selector.begin(torch.where(ends, slots, self.spare), self.advice(features))

    def select_lookup(self, slots: Tensor, worths: Tensor, accepted: Tensor, depths: Tensor) -> Tensor:
        """Choose among drafters that look up, where the others draft nothing, [B]; 0: no text continues the request.

        worths: what their chains state, [L, B].  accepted: of the last chain, [B]; -1: there was none.  depths: its
        tokens, [B].
        """
        began = time.perf_counter()
        self.guesses.forget(slots)
        before = self.hybrids.arms[slots]
        self.hybrids.learn(slots, accepted)
        choice = self.hybrids.choose_lookup(slots, worths, self.allowed[slots])
        if self.meter:
            before = torch.where(accepted >= 0, before, -1)
            self._count(before, self.hybrids.arms[slots], accepted + 1, depths, slots, began)
        return choice

    def _count(
        self, before: Tensor, choice: Tensor, counts: Tensor, depths: Tensor, slots: Tensor, began: float
    ) -> None:
        """Count the cycle that ended, whose drafters were `before` [B], -1 where nothing was drafted, in the meter.

        counts: its committed tokens, [B].  began: when selection began.
        """
        now = time.perf_counter()
        weights = self.selector.probs(slots).mean(dim=0)
        switched = (before >= 0) & (choice != before)
        cycle_s, self.ended = now - (began if self.ended is None else self.ended), now
        self.meter.cycle(before, (counts - 1).clamp(min=0), depths, switched, weights, now - began, cycle_s)
