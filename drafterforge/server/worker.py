"""One thread that owns the engine's open batch: answers join it between cycles, and leave when they end or are dropped.

An answer is a function of its prompt and seed alone, whoever shares the batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from drafterforge.runtime.batch import Joining, Row
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool_proposer import PoolProposer
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.stopping import StopRule
from drafterforge.server.metrics import Metrics

log = logging.getLogger(__name__)

FAILED, CLOSED = "failed", "closed"  # why an answer ends without a stop reason


class QueueFullError(Exception):
    """More answers than may wait."""


class ClosedError(Exception):
    """The worker takes no more answers."""


@dataclass(frozen=True, slots=True)
class Update:
    """What is new of an answer."""

    text: str = ""
    num_tokens: int = 0  # of the answer so far
    stop_reason: str = ""  # eos | stop | length | context with the last text
    failure: str = ""  # failed | closed: nothing more will come


@dataclass(eq=False)
class Job:
    """An answer that somebody waits for."""

    prompt: list[int]
    rule: StopRule
    sampling: Sampling
    deliver: Callable[[Update], None]  # called in the worker's thread
    arrived: float = field(default_factory=time.perf_counter)
    joining: Joining | None = None  # while its prompt is being read
    row: Row | None = None  # once its prompt is read
    dropped: bool = False  # nobody waits any more
    num_chars: int = 0  # delivered
    num_tokens: int = 0


class Worker:
    """Decodes jobs together, as many at once as the engine's batch takes."""

    def __init__(self, engine: Engine, metrics: Metrics, max_waiting: int) -> None:
        """max_waiting: jobs that may wait for a place in the batch."""
        self.engine, self.metrics = engine, metrics
        self.capacity = engine.max_batch + max_waiting
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []  # in the order of the batch's rows
        self.changed = threading.Condition()
        self.closes_at: float | None = None
        self.failing: set[str] = set()  # prompt | cycle | thread: failed the last time
        self.thread = threading.Thread(target=self._run, name="drafterforge-worker", daemon=True)
        metrics.running.set_function(lambda: len(self.running))
        metrics.waiting.set_function(lambda: len(self.waiting))

    @property
    def under_way(self) -> int:
        """Jobs that run or wait."""
        return len(self.running) + len(self.waiting)

    @property
    def open(self) -> bool:
        """Whether jobs are taken."""
        return self.closes_at is None and self.alive

    @property
    def state(self) -> str:
        """ok | failing, until what failed succeeds | shutting down."""
        if self.failing:
            return "failing"
        return "ok" if self.open else "shutting down"

    @property
    def alive(self) -> bool:
        """Whether anything is still decoded."""
        return self.thread.is_alive()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take all of the jobs, or none of them."""
        with self.changed:
            if not self.open:
                raise ClosedError
            if self.under_way + len(jobs) > self.capacity:
                raise QueueFullError
            self.waiting.extend(jobs)
            self.changed.notify()

    def drop(self, jobs: Sequence[Job]) -> None:
        """Forget jobs, before the next cycle; those that have ended stay as they are."""
        with self.changed:
            for job in jobs:
                job.dropped = True
            self.changed.notify()

    def close(self, grace_s: float) -> None:
        """Take no more jobs; those under way have `grace_s` seconds before they fail, then the thread ends."""
        with self.changed:
            limit = time.monotonic() + grace_s
            self.closes_at = limit if self.closes_at is None else min(self.closes_at, limit)
            self.changed.notify()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self.batch = self.engine.open_batch()
                while self._wait():
                    self._step()
        except BaseException:
            self.failing.add("thread")
            raise
        finally:
            with self.changed:
                left = [*self.running, *self.waiting]
                self.closes_at, self.running, self.waiting = 0.0, [], deque()
            self._give_up(left, CLOSED)

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when it is time to end."""
        with self.changed:
            while not self.under_way and self.closes_at is None:
                self.changed.wait()
            return self.under_way > 0 and (self.closes_at is None or time.monotonic() < self.closes_at)

    def _step(self) -> None:
        try:
            self._leave()
            self._admit()
            if self.running:
                self._cycle()
        except Exception:
            log.exception("a cycle failed; its %d answers are given up", len(self.running))
            self.failing.add("cycle")
            self._start_over()

    def _leave(self) -> None:
        """Let dropped jobs go."""
        kept = [place for place, job in enumerate(self.running) if not job.dropped]
        gone = len(self.running) - len(kept)
        if gone:
            self.batch.keep(kept)
        with self.changed:
            self.running = [self.running[place] for place in kept]
            for job in self.waiting:
                if job.dropped and job.joining is not None:
                    self.batch.abandon(job.joining)
            waiting = deque(job for job in self.waiting if not job.dropped)
            gone += len(self.waiting) - len(waiting)
            self.waiting = waiting
        self.metrics.answers.labels("dropped").inc(gone)

    def _admit(self) -> None:
        """Read some of the prompts that wait."""
        room = self.batch.prefill_chunk  # tokens that are read while the running answers wait for their next cycle
        while room > 0 and self.waiting and len(self.running) < self.engine.max_batch:
            job = self.waiting[0]
            try:
                if job.joining is None:
                    job.joining = self.batch.begin(job.prompt, job.rule, job.sampling)
                prefill = job.joining.prefill
                room += prefill.num_read
                is_read = self.batch.advance(job.joining)
                room -= prefill.num_read
                self.failing.discard("prompt")
            except Exception:
                self.failing.add("prompt")
                log.exception("a prompt of %d tokens could not be read", len(job.prompt))
                self._fail_prompt(job)
                continue
            if not is_read:
                continue
            job.row = job.joining.row
            with self.changed:
                self.waiting.popleft()
                if not job.row.answer.stop_reason:
                    self.running.append(job)
            self.metrics.read(job.row.answer)
            self.metrics.first_token.observe(time.perf_counter() - job.arrived)
            self._deliver(job)

    def _fail_prompt(self, job: Job) -> None:
        """Give up an answer whose prompt could not be read."""
        with self.changed:
            self.waiting.popleft()
        if job.joining in self.batch.joining:
            self.batch.abandon(job.joining)
        self._give_up([job], FAILED)
        if len(self.batch.rows) > len(self.running):
            self._start_over()  # it failed half way in

    def _cycle(self) -> None:
        """One cycle of the batch; its text goes out."""
        proposer, jobs = self.batch.proposer, self.running
        rows = list(proposer.rows) if isinstance(proposer, PoolProposer) else []
        self.batch.cycle(self.engine.shape)
        self.failing.discard("cycle")
        weights = np.mean([row.selector.played_probs for row in rows], axis=0) if rows else []
        named = dict(zip(proposer.names, map(float, weights), strict=True)) if rows else {}
        self.metrics.cycled([job.row.answer.cycles[-1] for job in jobs], named)
        with self.changed:
            self.running = [job for job in jobs if not job.row.answer.stop_reason]
        for job in jobs:
            self._deliver(job)

    def _deliver(self, job: Job) -> None:
        answer = job.row.answer
        update = Update(answer.text[job.num_chars :], len(answer.tokens), answer.stop_reason)
        self.metrics.generated_tokens.inc(update.num_tokens - job.num_tokens)
        if update.stop_reason:
            self.metrics.answers.labels(update.stop_reason).inc()
            self.metrics.answer_seconds.observe(time.perf_counter() - job.arrived)
        job.num_chars, job.num_tokens = len(answer.text), update.num_tokens
        job.deliver(update)

    def _start_over(self) -> None:
        """Give up what was running, and go on with a batch that nothing has happened to."""
        jobs = self.running
        with self.changed:
            self.running = []
            for job in self.waiting:
                job.joining = None  # its prompt is read anew
        self.batch = self.engine.open_batch()
        self._give_up(jobs, FAILED)

    def _give_up(self, jobs: Sequence[Job], why: str) -> None:
        for job in jobs:
            self.metrics.answers.labels(why).inc()
            job.deliver(Update(num_tokens=job.num_tokens, failure=why))
