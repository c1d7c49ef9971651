"""Recording of served traffic: which requests are learned from, and where their finished answers go.

The decoding thread hands over finished answers; another thread lets retrieval look them up at once, and appends them
with the target's outputs to a ring of shards.  Nothing of a request reaches logs or metrics.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from functools import partial

from drafterforge.config.learn import LearnConfig
from drafterforge.data import stream
from drafterforge.runtime.answer_log import HOUR_S, AnswerLog
from drafterforge.runtime.rows import Row
from drafterforge.server.metrics import Metrics

log = logging.getLogger(__name__)

MOST_WAITING = 64  # finished answers that the thread has not taken; further ones are not recorded


class ClientBudget:
    """Tokens that each client address may contribute in an hour in which others contribute too.

    All clients behind a proxy have its address, and without others there is nobody to crowd out.
    """

    def __init__(self, tokens_per_hour: int) -> None:
        self.tokens_per_hour = tokens_per_hour
        self.hour = 0
        self.spent: dict[str, int] = {}  # in this hour

    def has_room(self, client: str) -> bool:
        """Whether a request of this client may be recorded."""
        hour = int(time.monotonic() / HOUR_S)
        if hour != self.hour:
            self.hour, self.spent = hour, {}
        return self.spent.get(client, 0) < self.tokens_per_hour or not self.spent.keys() - {client}

    def charge(self, client: str, tokens: int) -> None:
        """Charge an answer with its prompt."""
        self.spent[client] = self.spent.get(client, 0) + tokens


class TrafficRecorder:
    """Records finished answers of a server."""

    def __init__(self, cfg: LearnConfig, answers: AnswerLog, metrics: Metrics) -> None:
        self.cfg, self.answers, self.metrics = cfg, answers, metrics
        self.budget = ClientBudget(cfg.client_tokens)
        self.draws, self.failure, self.next_try = random.Random(), "", 0.0
        self.waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self.thread = threading.Thread(target=self._work, name="drafterforge-traffic", daemon=True)
        self.thread.start()

    @property
    def state(self) -> str:
        """running | failed."""
        return "failed" if self.failure or self.answers.writer.record.error else "running"

    @property
    def is_paused(self) -> bool:
        """Whether nothing is recorded since a failure; later an answer tries whether recording works again."""
        return bool(self.failure) and time.monotonic() < self.next_try

    def admits(self, client: str, opted_out: bool, count: int = 1) -> bool:
        """Whether a request is recorded.  client: its address.  opted_out: by its header.  count: of its answers."""
        reason = "failed" if self.is_paused else ""
        if opted_out:
            reason = "opted_out"
        elif self.draws.random() >= self.cfg.sample:
            reason = "not_sampled"
        elif not self.budget.has_room(client):
            reason = "client_limit"
        if reason:
            self.metrics.unrecorded.labels(reason).inc(count)
        return not reason

    def record(self, client: str, num_erasures: int, row: Row) -> None:
        """Record a finished answer; called in the decoding thread, which does not wait.

        num_erasures: when its request came; nothing is recorded of a request that came before an erasure.
        """
        try:
            self.waiting.put_nowait(partial(self._record, client, num_erasures, row))
        except queue.Full:
            self.metrics.unrecorded.labels("busy").inc()

    def close(self) -> None:
        """Write what is pending."""
        self.waiting.put(None)
        self.thread.join()
        self.answers.close()

    # --- in the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        task: Callable[[], None] | None = self.answers.recall
        while task is not None:
            try:
                task()
            except Exception as error:  # recording must never break serving
                failure = str(error) or type(error).__name__
                if failure != self.failure:
                    log.error("answers are not recorded until this is mended: %s", failure)
                self.failure, self.next_try = failure, time.monotonic() + stream.RETRY_S
            task = self.waiting.get()

    def _record(self, client: str, num_erasures: int, row: Row) -> None:
        reason = "failed"
        try:
            if self.is_paused:
                return
            if not self.budget.has_room(client):  # other answers of this client have ended since it was admitted
                reason = "client_limit"
            elif self.answers.add(row, num_erasures):
                self.failure = ""
                if not self.answers.writer.record.error:  # else it only tries whether writing works again
                    reason = ""
                    self.budget.charge(client, len(row.text))
                    self.metrics.recorded.inc()
            else:
                reason = "busy"
        finally:
            if reason:
                self.metrics.unrecorded.labels(reason).inc()
