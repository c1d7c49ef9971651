"""Continuous batching: one thread owns the engine's batch, which answers join and leave between cycles.

Batching never changes an answer, which depends on its prompt and seed only.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from drafterforge.errors import DrafterforgeError
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.row_outputs import RowOutputs
from drafterforge.runtime.rows import Joining, Row
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.stopping import StopRule
from drafterforge.server.metrics import Metrics

log = logging.getLogger(__name__)

SAVE_S = 300.0  # between saves of what the engine has learned
RECOVERY_S = 30.0  # after a failure, in which the server counts as failing
FAILED, CLOSED = "failed", "closed"  # reasons of answers that end without a stop reason
THREAD = "thread"


class QueueFullError(Exception):
    """The queue has no room for the jobs."""


class ClosedError(Exception):
    """The worker accepts no more jobs."""


@dataclass(frozen=True, slots=True)
class Update:
    """New text of an answer, or its end."""

    text: str = ""
    num_tokens: int = 0  # of the answer so far
    stop_reason: str = ""  # eos | stop | length | context, in the last update
    failure: str = ""  # failed | closed, in the last update
    tokens: Sequence[int] = ()  # new ones


@dataclass(eq=False)
class Job:
    """An answer to be decoded."""

    prompt: list[int]
    rule: StopRule
    sampling: Sampling
    deliver: Callable[[Update], None]  # called in the worker's thread
    record: Callable[[Row], None] | None = None  # called in the worker's thread at the answer's end; None: not recorded
    arrived: float = field(default_factory=time.perf_counter)
    joining: Joining | None = None  # during the prefill
    row: Row | None = None  # after the prefill
    dropped: bool = False  # the client does not wait any more
    num_chars: int = 0  # delivered so far
    num_tokens: int = 0  # delivered so far


class Worker:
    """Decodes jobs in batches of up to `engine.max_batch`."""

    def __init__(self, engine: Engine, metrics: Metrics, max_waiting: int) -> None:
        """max_waiting: jobs that may wait for a free row of the batch."""
        self.engine, self.metrics = engine, metrics
        self.capacity = engine.max_batch + max_waiting
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []  # in the order of the batch's rows
        self.tasks: deque[Callable[[], None]] = deque()  # to be called between cycles
        self.changed = threading.Condition()
        self.closes_at: float | None = None
        self.save_s = SAVE_S
        self.failing: dict[str, float] = {}  # step whose last run failed (prompt, cycle or thread) -> when it did
        self.thread = threading.Thread(target=self._run, name="drafterforge-worker", daemon=True)
        metrics.running.set_function(lambda: len(self.running))
        metrics.waiting.set_function(lambda: len(self.waiting))

    @property
    def num_jobs(self) -> int:
        """Number of running and waiting jobs."""
        return len(self.running) + len(self.waiting)

    @property
    def open(self) -> bool:
        """Whether jobs are accepted."""
        return self.closes_at is None and self.alive

    @property
    def state(self) -> str:
        """ok | failing, for `RECOVERY_S` after a step failed or until it succeeds | shutting down.

        Where `/health` decides who gets requests, no step would succeed again without an end.
        """
        if self.dead or any(time.monotonic() - failed < RECOVERY_S for failed in self.failing.values()):
            return "failing"
        return "ok" if self.open else "shutting down"

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    @property
    def dead(self) -> bool:
        """Whether an error has ended the thread, so that nothing is decoded any more."""
        return THREAD in self.failing

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of the jobs; raises ClosedError or QueueFullError if they cannot all be queued."""
        with self.changed:
            if not self.open:
                raise ClosedError
            if self.num_jobs + len(jobs) > self.capacity:
                raise QueueFullError
            self.waiting.extend(jobs)
            self.changed.notify()

    def between_cycles(self, task: Callable[[], None]) -> None:
        """Call a function in the worker's thread, before the next cycle; its errors are logged."""
        with self.changed:
            self.tasks.append(task)
            self.changed.notify()

    def drop(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs before the next cycle; jobs that have ended are not affected."""
        with self.changed:
            for job in jobs:
                job.dropped = True
            self.changed.notify()

    def close(self, grace_s: float) -> None:
        """Accept no more jobs; the queued ones fail after `grace_s` seconds, then the thread ends."""
        with self.changed:
            limit = time.monotonic() + grace_s
            self.closes_at = limit if self.closes_at is None else min(self.closes_at, limit)
            self.changed.notify()

    def _run(self) -> None:
        gc.collect()
        gc.freeze()  # the collector no longer walks through all that is loaded, while the answers would wait
        try:
            with torch.inference_mode():
                self.batch = self.engine.open_batch()
                saved = time.monotonic()
                while self._wait():
                    self._step()
                    if time.monotonic() - saved > self.save_s:
                        self._save_state()
                        saved = time.monotonic()
        except BaseException:
            self.failing[THREAD] = time.monotonic()
            raise
        finally:
            gc.unfreeze()
            with self.changed:
                jobs = [*self.running, *self.waiting]
                self.closes_at, self.running, self.waiting = 0.0, [], deque()
            self._fail(jobs, FAILED if self.dead else CLOSED)
            self._save_state()

    def _save_state(self) -> None:
        try:
            self.engine.save_state()
        except Exception as error:  # answers go on without it
            is_bug = not isinstance(error, (DrafterforgeError, OSError))
            log.warning("what drafter=auto has learned is not saved: %s", error, exc_info=is_bug)

    def _wait(self) -> bool:
        """Sleep until there is a job; False when the thread has to end."""
        with self.changed:
            while not self.num_jobs and not self.tasks and self.closes_at is None:
                self.changed.wait()
            has_work = self.num_jobs > 0 or (len(self.tasks) > 0 and self.closes_at is None)
            return has_work and (self.closes_at is None or time.monotonic() < self.closes_at)

    def _step(self) -> None:
        while self.tasks:
            try:
                self.tasks.popleft()()
            except Exception:
                log.exception("a change of the drafters failed; decoding goes on")
        try:
            self._remove_dropped()
            self._admit()
            if self.running:
                self._cycle()
        except Exception:
            log.exception("a cycle failed, and its %d answers with it", len(self.running))
            self.failing["cycle"] = time.monotonic()
            self._replace_batch()

    def _remove_dropped(self) -> None:
        """Remove dropped jobs from the batch and the queue."""
        rows = [row for row, job in enumerate(self.running) if not job.dropped]
        num_dropped = len(self.running) - len(rows)
        if num_dropped:
            self.batch.keep(rows)
        with self.changed:
            self.running = [self.running[row] for row in rows]
            for job in self.waiting:
                if job.dropped and job.joining is not None:
                    self.batch.abandon(job.joining)
            waiting = deque(job for job in self.waiting if not job.dropped)
            num_dropped += len(self.waiting) - len(waiting)
            self.waiting = waiting
        self.metrics.answers.labels("dropped").inc(num_dropped)

    def _admit(self) -> None:
        """Read a chunk of the waiting prompts."""
        room = self.batch.prefill_chunk  # in tokens; bounds the delay of the running answers
        while room > 0 and self.waiting and len(self.running) < self.engine.max_batch:
            job = self.waiting[0]
            try:
                if job.joining is None:
                    outputs = None if job.record is None else RowOutputs()
                    job.joining = self.batch.begin(job.prompt, job.rule, job.sampling, outputs)
                num_read = job.joining.prefill.num_read
                is_read = self.batch.advance(job.joining)
                room -= job.joining.prefill.num_read - num_read
                self.failing.pop("prompt", None)
            except Exception:
                self.failing["prompt"] = time.monotonic()
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
            self.metrics.record_prefill(job.row.answer)
            self.metrics.first_token.observe(time.perf_counter() - job.arrived)
            self._deliver(job)

    def _fail_prompt(self, job: Job) -> None:
        """Fail a job whose prompt could not be read."""
        with self.changed:
            self.waiting.popleft()
        if job.joining in self.batch.joining:
            self.batch.abandon(job.joining)
        self._fail([job], FAILED)
        if len(self.batch.rows) > len(self.running):
            self._replace_batch()  # the failed prefill has left a row in it

    def _cycle(self) -> None:
        """Run a cycle of the batch and deliver its text."""
        jobs = self.running
        self.batch.cycle(self.engine.shape)
        self.failing.pop("cycle", None)
        self.metrics.record_cycle([job.row.answer.cycles[-1] for job in jobs], self.batch.selection_probs())
        with self.changed:
            self.running = [job for job in jobs if not job.row.answer.stop_reason]
        for job in jobs:
            self._deliver(job)

    def _deliver(self, job: Job) -> None:
        answer = job.row.answer
        tokens = answer.tokens[job.num_tokens :]
        update = Update(answer.text[job.num_chars :], len(answer.tokens), answer.stop_reason, tokens=tokens)
        self.metrics.generated_tokens.inc(update.num_tokens - job.num_tokens)
        if update.stop_reason:
            self.metrics.answers.labels(update.stop_reason).inc()
            self.metrics.answer_seconds.observe(time.perf_counter() - job.arrived)
            if job.record is not None:
                job.record(job.row)
        job.num_chars, job.num_tokens = len(answer.text), update.num_tokens
        job.deliver(update)

    def _replace_batch(self) -> None:
        """Fail the running jobs and open a new batch."""
        jobs = self.running
        with self.changed:
            self.running = []
            for job in self.waiting:
                job.joining = None  # its prompt is read again
        self._fail(jobs, FAILED)
        self.batch = self.engine.open_batch()

    def _fail(self, jobs: Sequence[Job], reason: str) -> None:
        for job in jobs:
            self.metrics.answers.labels(reason).inc()
            job.deliver(Update(num_tokens=job.num_tokens, failure=reason))
