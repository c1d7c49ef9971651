"""Finished answers of an engine: in a bounded ring of shards on disk, and in a memory that retrieval looks up.

The texts and the target's outputs are written by a thread of the ring.  All methods may be called in one other thread.
"""

from __future__ import annotations

import math
import secrets
from pathlib import Path

import numpy as np

from drafterforge.config.learn import LearnConfig
from drafterforge.data.answers import Answer
from drafterforge.data.served import ServedAnswer, served_shards
from drafterforge.data.stream import GB, PARTS, Retention, StreamWriter
from drafterforge.drafters.retrieval.kind import marked_texts
from drafterforge.drafters.retrieval.memory import AnswerMemory
from drafterforge.drafters.retrieval.model import RetrievalSpec
from drafterforge.runtime.rows import Row
from drafterforge.targets.load import Target

FLUSH_S = 30.0  # seconds that finished answers wait for their shard at most; a kill loses these
HOUR_S = 3600.0
LEAD = RetrievalSpec().max_ngram  # tokens of the prompt that an answer's first tokens are looked up by


class AnswerLog:
    """The ring and the memory of a target's answers."""

    def __init__(self, cfg: LearnConfig, folder: Path, target: Target) -> None:
        """folder: of the ring.  Raises ConfigError if another process writes there, ArtifactError if it cannot."""
        self.memory = AnswerMemory(cfg.memory_tokens) if cfg.memory_tokens > 1 else None
        self.num_erasures = 0  # of all that was written
        self.run, self.num_answers = secrets.token_hex(6), 0
        labels = {"target": target.name, "fingerprint": target.fingerprint}
        retention = Retention(cfg.max_age_h * HOUR_S, self._erased, self._forget)
        limit = int(cfg.ring_gb * GB)
        self.largest = limit // PARTS  # bytes of an answer
        self.writer = StreamWriter(folder, limit, target.backbone.taps, labels, flush_s=FLUSH_S, retention=retention)

    def recall(self) -> None:
        """Fill the memory with the newest answers of the ring."""
        if self.memory is None:
            return
        texts: list[np.ndarray] = []
        times: list[float] = []  # when the shards of the texts were written
        for path, rows in reversed([*served_shards(self.writer.folder)]):
            try:
                time = path.stat().st_mtime
            except FileNotFoundError:  # deleted meanwhile, as it is too old
                continue
            for index in reversed(range(len(rows))):
                texts += marked_texts(*rows.arrays(index), LEAD)
            times += [time] * (len(texts) - len(times))
            if sum(map(len, texts)) >= self.memory.capacity:
                break
        with self.writer.changed:
            if not self.num_erasures:
                self.memory.add(reversed(texts), reversed(times))

    def add(self, row: Row, num_erasures: int) -> bool:
        """Add a finished answer; False if the ring has no room, or was erased since there were `num_erasures`."""
        served = self._served(row)
        ids, mask = np.asarray(served.answer.input_ids), np.asarray(served.answer.loss_mask)
        with self.writer.changed:
            if num_erasures != self.num_erasures or not self.writer.has_room:
                return False
            if self.memory is not None:
                self.memory.add(marked_texts(ids, mask, LEAD))
            self.writer.add(-1, served)
        return True

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

    def _erased(self) -> None:
        """Forget all answers; called by the writer's thread, which has deleted them and holds its lock."""
        self.num_erasures += 1
        self._forget()

    def _forget(self, before: float = math.inf) -> None:
        if self.memory is not None:
            self.memory.forget(before)

    def close(self) -> None:
        """Write what is pending."""
        self.writer.close()
