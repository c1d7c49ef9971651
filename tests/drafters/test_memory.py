"""Finished answers are looked up at once; beyond the capacity those leave whose last use is longest ago."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.drafters.retrieval.memory import AnswerMemory, RememberingDatastore
from drafterforge.drafters.retrieval.model import (
    ContextIndex,
    Datastore,
    Retrieval,
    RetrievalSpec,
    evidence_of,
)

SPEC = RetrievalSpec()


def text(number: int, length: int = 20) -> list[int]:
    """An answer that shares no two neighbouring tokens with those of other numbers."""
    return [1000 * number + position for position in range(length)]


def ahead(memory: AnswerMemory, context: list[int], depth: int = 3) -> list[list[int]]:
    return [tokens for _, part in memory.continuations(context, SPEC, depth) for tokens in part]


def test_an_answer_is_looked_up_as_soon_as_it_is_added():
    memory = AnswerMemory(1000)
    assert ahead(memory, text(1)[:5]) == []
    memory.add([text(1)])
    assert ahead(memory, text(1)[:5]) == [text(1)[5:8]]
    memory.add([text(2)])
    assert ahead(memory, text(1)[:5]) == [text(1)[5:8]] and ahead(memory, text(2)[:5]) == [text(2)[5:8]]


@pytest.mark.parametrize("capacity", [40, 200, 1000])
def test_the_memory_never_exceeds_its_capacity_and_keeps_the_newest(capacity):
    memory = AnswerMemory(capacity)
    for number in range(200):
        memory.add([text(number)])
        assert memory.num_tokens <= capacity
        assert ahead(memory, text(number)[:5]) == [text(number)[5:8]]
    held = sum(bool(ahead(memory, text(number)[:5])) for number in range(200))
    assert held * 20 == memory.num_tokens >= capacity / 4


def test_answers_that_are_used_stay_and_unused_ones_leave():
    memory = AnswerMemory(200)
    memory.add([text(1), text(2)])
    for number in range(3, 60):
        memory.add([text(number)])
        assert ahead(memory, text(1)[:5]) == [text(1)[5:8]]  # used in every round
    assert ahead(memory, text(2)[:5]) == []


def test_a_repeated_answer_is_held_once():
    memory = AnswerMemory(1000)
    for _ in range(50):
        memory.add([text(1), text(2)])
    assert memory.num_tokens == 40 and ahead(memory, text(1)[:5]) == [text(1)[5:8]]


def test_a_long_answer_is_cut_and_a_memory_that_forgets_all_is_empty():
    memory = AnswerMemory(100)
    memory.add([text(1, 900)])
    assert memory.num_tokens == 75 and ahead(memory, text(1)[:5]) == [text(1)[5:8]]
    memory.forget()
    assert memory.num_tokens == 0 and ahead(memory, text(1)[:5]) == []


@pytest.mark.parametrize("num_texts", [4, 400])  # in the small datastore; in both
def test_answers_last_given_before_a_time_are_forgotten(num_texts):
    memory = AnswerMemory(40_000)
    numbers = range(num_texts)
    memory.add(map(text, numbers), map(float, numbers))
    memory.add([text(0)], [num_texts + 1.0])  # given again
    half = num_texts // 2
    memory.forget(before=half)
    held = [number for number in numbers if ahead(memory, text(number)[:5])]
    assert held == [0, *range(half, num_texts)] and memory.num_tokens == 20 * len(held)
    memory.add([text(1)])
    assert ahead(memory, text(1)[:5]) == [text(1)[5:8]]


def test_all_answers_at_once_equal_them_after_each_other():
    apart, together = AnswerMemory(10_000), AnswerMemory(10_000)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 5, 30).tolist() for _ in range(20)]
    for answer in texts:
        apart.add([answer])
    together.add(texts)
    for answer in texts:
        for end in (3, 9, 20):
            assert sorted(ahead(apart, answer[:end])) == sorted(ahead(together, answer[:end]))


def test_occurrences_of_the_memory_add_to_those_of_the_datastore():
    memory, datastore = AnswerMemory(1000), Datastore.build([text(1)])
    context = ContextIndex(SPEC)
    context.append(text(1)[:4])
    alone = evidence_of(context, datastore, 3).occurrences
    assert evidence_of(context, RememberingDatastore(datastore, memory), 3).occurrences == alone
    memory.add([text(1)])
    assert evidence_of(context, RememberingDatastore(datastore, memory), 3).occurrences == alone * 2
    assert evidence_of(context, RememberingDatastore(None, memory), 3).occurrences == alone
    assert Retrieval(datastore=RememberingDatastore(None, memory)).datastore.memory is memory
