"""The soak's clients compare answers, notice a changed one, and count what is refused."""

from __future__ import annotations

import json
import os
import time

import pytest

from drafterforge.runtime.engine import Engine
from tests.server.conftest import SHAPE, pool_of, serving, speaking_target
from tests.test_scripts import SCRIPTS, import_script

SOAK = next(path for path in SCRIPTS if path.stem == "soak")


@pytest.fixture
def soak(monkeypatch):
    return import_script(SOAK, monkeypatch)


def test_a_short_soak_loses_and_changes_no_answer(soak):
    target = speaking_target(max_position_embeddings=1024)
    with serving(Engine(target, pool_of(target), SHAPE), api_key="sesame", max_waiting=4) as up:
        clients = soak.Clients(up.url, "sesame", soak.requests_of("tiny", 0, longest=16, most_tokens=40))
        figures, rows = soak.soak(clients, minutes=0.05, count=4, pid=os.getpid())
        assert clients.tally.problems == []
        assert figures["differing"] == figures["failures"] == 0 and figures["answers"] > 10
        assert 0 < figures["token_gap_p50_ms"] <= figures["token_gap_p99_ms"] and figures["drain_s"] < 30
        assert figures["first_token_p50_ms"] > 0 and figures["memory_mb"] > 0
        assert len(rows) == 10 and rows[2]["memory_mb"] == figures["memory_mb"]
        clients.expected[0] += "changed"
        for _ in range(2):
            clients.compare(0, clients.alone(0))
        assert clients.tally.counts["differing"] == 2 and "request 0" in clients.tally.problems[0]


def test_requests_are_the_same_for_a_seed_and_differ_from_one_another(soak):
    requests = soak.requests_of("tiny", 3)
    assert requests == soak.requests_of("tiny", 3) != soak.requests_of("tiny", 4)
    assert len({json.dumps(request) for request in requests}) == soak.DISTINCT
    assert {request["temperature"] for request in requests} == {0.0, 0.7, 1.0}


def test_a_server_that_ends_early_is_a_failure(soak):
    target = speaking_target()
    with serving(Engine(target), api_key="") as up:
        clients = soak.Clients(up.url, "", soak.requests_of("tiny", 0, longest=8))
    clients.run(time.monotonic() + 0.2, seed=0, most=2)
    assert clients.tally.counts["failures"] > 0
