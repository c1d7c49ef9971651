"""Newest answers of a server, which retrieval looks up as soon as they are finished.

Two datastores hold them: a small one of the newest answers, built again with every answer, and a large one, built again
when the small one is full.  Then the answers leave that were neither added nor looked up for the longest time.
Answers beyond an age leave when their owner says so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from time import time as clock

import numpy as np

from drafterforge.drafters.retrieval.model import Continuations, Datastore, RetrievalSpec

NEWEST_TOKENS = 4096  # of the small datastore, at most; 1/4 of the capacity where that is less
USE_LENGTH = 4  # tokens of the context that an answer must match to count as used
MOST_USES = 65536  # uses that wait to be counted; older ones are forgotten


@dataclass(eq=False)
class RememberedAnswer:
    """An answer with the tokens before it that its first ones are looked up by."""

    tokens: np.ndarray  # int32
    last_use: int  # number of additions to the memory when it was added or looked up last
    time: float  # when it was given last, in seconds since the epoch


class IndexedAnswers:
    """Answers in a datastore."""

    def __init__(self, answers: Sequence[RememberedAnswer]) -> None:
        self.answers = list(answers)
        self.datastore = Datastore.build(answer.tokens for answer in self.answers)
        self.ends = np.cumsum([len(answer.tokens) + 1 for answer in self.answers])  # the separators behind the answers

    def answer_at(self, position: int) -> RememberedAnswer:
        """The answer that holds a position of the datastore."""
        return self.answers[int(np.searchsorted(self.ends, position))]


class AnswerMemory:
    """Answers up to a number of tokens.  One thread adds answers while the decoding thread looks them up."""

    def __init__(self, capacity: int) -> None:
        """capacity: in tokens, at least 2."""
        self.capacity, self.newest_tokens = capacity, min(NEWEST_TOKENS, max(capacity // 4, 1))
        self.parts: tuple[IndexedAnswers, ...] = ()  # replaced as a whole: lookups of another thread need no lock
        self.uses: deque[tuple[IndexedAnswers, int]] = deque(maxlen=MOST_USES)
        self.answers: dict[bytes, RememberedAnswer] = {}  # in the order in which they were added
        self.older: IndexedAnswers | None = None  # the large datastore
        self.newest: list[RememberedAnswer] = []  # answers that are not in it
        self.num_added = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(answer.tokens) for answer in self.answers.values())

    def add(self, texts: Iterable[Sequence[int]], times: Iterable[float] | None = None) -> None:
        """Add answers, which are looked up from now on; one that is there already counts as used.

        times: when each was given, in seconds since the epoch; None: now.
        """
        times = repeat(clock()) if times is None else times
        self._count_uses()
        for tokens, time in zip(texts, times, strict=False):
            ids = np.asarray(tokens[: self.capacity - self.newest_tokens], np.int32)
            self.num_added += 1
            answer = self.answers.get(ids.tobytes())
            if answer is None:
                answer = self.answers[ids.tobytes()] = RememberedAnswer(ids, self.num_added, time)
                self.newest.append(answer)
            answer.last_use, answer.time = self.num_added, max(answer.time, time)
        if sum(len(answer.tokens) for answer in self.newest) > self.newest_tokens:
            self._index_all()
        else:
            self._look_up()

    def forget(self, before: float = math.inf) -> None:
        """Forget the answers that were last given before a time, in seconds since the epoch."""
        younger = {key: answer for key, answer in self.answers.items() if answer.time >= before}
        if len(younger) < len(self.answers):
            self._count_uses()
            self.answers = younger
            self._index_all()

    def _index_all(self) -> None:
        """Build the large datastore of all answers that leave room for the newest ones."""
        self._make_room()
        self.older, self.newest = IndexedAnswers(list(self.answers.values())) if self.answers else None, []
        self._look_up()

    def _look_up(self) -> None:
        """Look up the present answers from now on."""
        parts = [self.older, IndexedAnswers(self.newest) if self.newest else None]
        self.parts = tuple(part for part in parts if part is not None)

    def continuations(self, context: Sequence[int], spec: RetrievalSpec, depth: int) -> Continuations:
        """See `Datastore.continuations`."""
        matches: Continuations = []
        for part in self.parts:
            for length, positions in part.datastore.lookup(context, spec):
                if length >= USE_LENGTH:
                    self.uses.append((part, positions[0]))
                matches.append((length, part.datastore.ahead(positions, depth)))
        return longest_matches(matches, spec.max_matches)

    def _count_uses(self) -> None:
        while self.uses:
            part, position = self.uses.popleft()
            part.answer_at(position).last_use = self.num_added

    def _make_room(self) -> None:
        """Remove the answers whose last use is longest ago, until the newest ones of the next part fit."""
        excess = self.num_tokens + self.newest_tokens - self.capacity
        for key, answer in sorted(self.answers.items(), key=lambda item: item[1].last_use):
            if excess <= 0 or len(self.answers) == 1:
                return
            del self.answers[key]
            excess -= len(answer.tokens)


@dataclass(frozen=True, eq=False)
class RememberingDatastore:
    """A datastore, if there is one, and a memory beside it."""

    stored: Datastore | None
    memory: AnswerMemory

    def remembered(self, context: Sequence[int], spec: RetrievalSpec, depth: int) -> Continuations:
        """See `AnswerSource`."""
        return self.memory.continuations(context, spec, depth)


def longest_matches(matches: Continuations, count: int) -> Continuations:
    """At most `count` continuations, those of the longest matches first."""
    remaining: Continuations = []
    for length, continuations in sorted(matches, key=lambda match: -match[0]):
        part = continuations[:count]
        count -= len(part)
        if part:
            remaining.append((length, part))
    return remaining
