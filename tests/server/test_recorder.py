"""The limit of a client holds for all of its requests, also for those that are answered at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from drafterforge.config.learn import LearnConfig
from drafterforge.server.metrics import Metrics
from drafterforge.server.traffic import TrafficRecorder

LIMIT, TOKENS = 100, 30  # tokens an hour; of an answer with its prompt


class Answers:
    """A log of answers that has room until it is full."""

    memory, num_erasures = None, 0
    writer = SimpleNamespace(record=SimpleNamespace(error=""))

    def __init__(self) -> None:
        self.rows, self.is_full = [], False

    def recall(self) -> None:
        pass

    def add(self, row, num_erasures: int) -> bool:
        if not self.is_full:
            self.rows.append(row)
        return not self.is_full

    def close(self) -> None:
        pass


@pytest.fixture
def recorder() -> Iterator[TrafficRecorder]:
    recorder = TrafficRecorder(LearnConfig(record=True, client_tokens=LIMIT), Answers(), Metrics("none"))
    yield recorder
    if recorder.thread.is_alive():
        recorder.close()


def record(recorder: TrafficRecorder, client: str, count: int) -> None:
    for _ in range(count):
        recorder.record(client, 0, SimpleNamespace(text=range(TOKENS)))
    done = threading.Event()
    recorder.waiting.put(done.set)
    assert done.wait(10)


def unrecorded(recorder: TrafficRecorder, reason: str) -> float:
    return recorder.metrics.unrecorded.labels(reason)._value.get()


def test_requests_at_the_same_time_are_within_the_limit_of_their_client(recorder):
    record(recorder, "other", 2)
    assert all(recorder.admits("flood", False) for _ in range(20))
    record(recorder, "flood", 20)
    assert len(recorder.answers.rows) == 4 + 2  # the fourth one reaches the limit
    assert unrecorded(recorder, "client_limit") == 16


def test_a_client_without_others_has_no_limit(recorder):
    record(recorder, "proxy", 20)
    assert recorder.admits("proxy", False) and len(recorder.answers.rows) == 20
    record(recorder, "other", 1)
    assert not recorder.admits("proxy", False) and recorder.admits("other", False)


def test_recording_goes_on_once_its_cause_of_failure_is_gone(recorder, monkeypatch):
    add, recorder.answers.add = recorder.answers.add, lambda *args: 1 / 0
    record(recorder, "client", 2)
    assert recorder.state == "failed" and unrecorded(recorder, "failed") == 2
    assert not recorder.admits("client", False) and unrecorded(recorder, "failed") == 3
    recorder.answers.add, recorder.next_try = add, 0.0
    assert recorder.admits("client", False)
    record(recorder, "client", 3)
    assert recorder.state == "running" and len(recorder.answers.rows) == 3


def test_only_recorded_answers_count_towards_the_limit(recorder):
    recorder.answers.is_full = True
    assert recorder.admits("client", False)
    record(recorder, "client", 20)
    assert unrecorded(recorder, "busy") == 20
    assert recorder.admits("client", False)


def test_every_answer_of_a_request_that_is_left_out_is_counted(recorder):
    assert not recorder.admits("client", True, count=3)
    assert unrecorded(recorder, "opted_out") == 3
