"""Recording of served traffic: which requests are learned from, and where their finished answers go.

The decoding thread hands over finished answers; another thread lets retrieval look them up at once, and appends them
with the target's outputs to a ring of shards.  Nothing of a request reaches logs or metrics.
"""

from __future__ import annotations

import logging
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from drafterforge.config.learn import LearnConfig
from drafterforge.data.answers import Answer
from drafterforge.data.served import ServedAnswer, served_shards
from drafterforge.data.stream import GB, PARTS, Retention, StreamWriter
from drafterforge.drafters.retrieval.kind import marked_texts
from drafterforge.drafters.retrieval.memory import AnswerMemory
from drafterforge.drafters.retrieval.model import RetrievalSpec
from drafterforge.runtime.batch import Row
from drafterforge.server.metrics import Metrics
from drafterforge.targets.load import Target

log = logging.getLogger(__name__)

MOST_WAITING = 64  # finished answers that the thread has not taken; further ones are not recorded
HOUR_S = 3600.0
LEAD = RetrievalSpec().max_ngram  # tokens of the prompt that an answer's first tokens are looked up by


class ClientBudget:
    """Tokens that each client address may contribute in an hour."""

    def __init__(self, tokens_per_hour: int) -> None:
        self.tokens_per_hour = tokens_per_hour
        self.hour = 0
        self.spent: dict[str, int] = {}  # in this hour

    def has_room(self, client: str) -> bool:
        """Whether a request of this client may be recorded."""
        hour = int(time.monotonic() / HOUR_S)
        if hour != self.hour:
            self.hour, self.spent = hour, {}
        return self.spent.get(client, 0) < self.tokens_per_hour

    def charge(self, client: str, tokens: int) -> None:
        """Charge an answer with its prompt."""
        self.spent[client] = self.spent.get(client, 0) + tokens


class TrafficRecorder:
    """Records finished answers of a server."""

    def __init__(self, cfg: LearnConfig, folder: Path, target: Target, metrics: Metrics) -> None:
        """folder: of the ring.  Raises ConfigError if another process records there, ArtifactError if it cannot."""
        self.cfg, self.metrics = cfg, metrics
        self.memory = AnswerMemory(cfg.memory_tokens) if cfg.memory_tokens > 1 else None
        self.budget = ClientBudget(cfg.client_tokens)
        self.draws = random.Random()
        self.failure, self.num_erasures = "", 0
        labels = {"target": target.name, "fingerprint": target.fingerprint}
        retention = Retention(cfg.max_age_h * HOUR_S, self._forget)
        limit = int(cfg.ring_gb * GB)
        self.largest = limit // PARTS  # bytes of an answer
        self.writer = StreamWriter(folder, limit, target.backbone.taps, labels, retention=retention)
        self.run, self.num_answers = secrets.token_hex(6), 0
        self.waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self.thread = threading.Thread(target=self._work, name="drafterforge-traffic", daemon=True)
        self.thread.start()

    @property
    def state(self) -> str:
        """running | failed."""
        return "failed" if self.failure else "running"

    def admits(self, client: str, opted_out: bool) -> bool:
        """Whether a request is recorded.  client: its address.  opted_out: by its header."""
        reason = self.failure and "failed"
        if opted_out:
            reason = "opted_out"
        elif self.draws.random() >= self.cfg.sample:
            reason = "not_sampled"
        elif not self.budget.has_room(client):
            reason = "client_limit"
        if reason:
            self.metrics.unrecorded.labels(reason).inc()
        return not reason

    def record(self, client: str, row: Row) -> None:
        """Record a finished answer; called in the decoding thread, which does not wait."""
        try:
            self.waiting.put_nowait(partial(self._record, client, row, self.num_erasures))
        except queue.Full:
            self.metrics.unrecorded.labels("busy").inc()

    def close(self) -> None:
        """Write what is pending."""
        self.waiting.put(None)
        self.thread.join()
        self.writer.close()

    # --- in the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        task: Callable[[], None] | None = self._recall
        while task is not None:
            try:
                task()
            except Exception as error:  # recording must never break serving
                log.error("answers are not recorded any more: %s", error)
                self.failure = str(error)
            task = self.waiting.get()

    def _recall(self) -> None:
        """Let retrieval look up the newest answers of the ring."""
        if self.memory is None:
            return
        texts: list[np.ndarray] = []
        for _, rows in reversed([*served_shards(self.writer.folder)]):
            for index in reversed(range(len(rows))):
                texts += marked_texts(*rows.arrays(index), LEAD)
            if sum(map(len, texts)) >= self.memory.capacity:
                break
        with self.writer.changed:
            if not self.num_erasures:
                self.memory.add(reversed(texts))

    def _record(self, client: str, row: Row, num_erasures: int) -> None:
        """num_erasures: when the answer ended; it is not recorded if there was one since."""
        if self.failure:
            return
        served = self._served(row)
        ids, mask = np.asarray(served.answer.input_ids), np.asarray(served.answer.loss_mask)
        self.budget.charge(client, len(ids))
        with self.writer.changed:
            if num_erasures != self.num_erasures or not self.writer.has_room:
                self.metrics.unrecorded.labels("busy").inc()
                return
            if self.memory is not None:
                self.memory.add(marked_texts(ids, mask, LEAD))
            self.writer.add(-1, served)
        self.metrics.recorded.inc()

    def _served(self, row: Row) -> ServedAnswer:
        """The answer, with the target's outputs if they were recorded and are not too large."""
        answer = row.answer
        ids, num_prompt, num_answer = answer.prompt + answer.tokens, len(answer.prompt), len(answer.tokens)
        mask = [0] * num_prompt + [1] * num_answer
        name, self.num_answers = f"{self.run}-{self.num_answers:08d}", self.num_answers + 1
        finished = answer.stop_reason == "eos"
        text = Answer(name, "", "", "train", ids, mask, num_prompt, num_answer, finished)
        features, states = (None, None) if row.outputs is None else row.outputs.join(len(ids) - 1)
        if features is None or features.nbytes + states.nbytes > self.largest:
            return ServedAnswer(text)
        return ServedAnswer(text, features, states)

    def _forget(self) -> None:
        """Forget all answers; called by the writer's thread, which has deleted them and holds its lock."""
        self.num_erasures += 1
        if self.memory is not None:
            self.memory.clear()
