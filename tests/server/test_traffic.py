"""`learn=on` records finished answers within its limits, and learning changes no answer."""

from __future__ import annotations

import logging
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest

from drafterforge.config.learn import LearnConfig
from drafterforge.data import stream
from drafterforge.data.served import served_rows, served_shards
from drafterforge.data.stream import erase_stream
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Generation
from drafterforge.server import service
from drafterforge.server.learning import LearnerProcess
from tests.server.conftest import HTTP, SHAPE, eventually, pool_of, serving

pytestmark = pytest.mark.slow  # whole programs

SECRET = "the secret of this prompt"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(stream, "TIDY_S", 0.01)
    monkeypatch.setattr(stream, "POLL_S", 0.01)


def learning(tmp_path, **changes) -> LearnConfig:
    return LearnConfig(record=True, train=False, folder=str(tmp_path / "ring"), **changes)


def texts(tmp_path) -> list[list[int]]:
    return [list(row.transcript.ids) for row in served_rows(tmp_path / "ring")]


def test_finished_answers_are_recorded_with_outputs_and_nothing_is_logged(speaking, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with serving(Engine(speaking, pool_of(speaking), SHAPE), learn=learning(tmp_path)) as up:
        answers = [up.ask(prompt=f"{SECRET} {number}", return_token_ids=True).json() for number in range(5)]
        eventually(lambda: up.figure("recorded_answers_total") == 5)
        assert HTTP.get(f"{up.url}/health").json() == {"status": "ok", "recording": "running"}
        assert SECRET not in HTTP.get(f"{up.url}/metrics").text
        assert up.figure("learning_up") == 1
    expected = [
        [*choice["prompt_token_ids"], *choice["token_ids"]] for answer in answers for choice in answer["choices"]
    ]
    assert sorted(texts(tmp_path)) == sorted(expected)
    assert len(list((tmp_path / "ring").glob("*.safetensors"))) == len(list(served_shards(tmp_path / "ring")))
    assert SECRET not in caplog.text
    assert stat.S_IMODE((tmp_path / "ring").stat().st_mode) == 0o700  # nobody else reads it


def test_learning_changes_no_answer(speaking, tmp_path):
    prompts = [f"request {number % 3}" for number in range(12)]
    plain = [Engine(speaking).generate([prompt], 24)[0].tokens for prompt in prompts]
    with serving(Engine(speaking, pool_of(speaking), SHAPE), learn=learning(tmp_path)) as up:
        fields = {"return_token_ids": True, "max_tokens": 24}
        answers = [up.ask(prompt=prompt, **fields).json()["choices"][0]["token_ids"] for prompt in prompts]
    assert answers == plain


def test_a_repeated_request_is_drafted_from_the_memory_also_after_a_restart(speaking, tmp_path):
    def cycles(up) -> float:
        before = up.figure("cycles_total")
        assert up.ask(prompt="again", max_tokens=40).status_code == 200
        return up.figure("cycles_total") - before

    def engine() -> Engine:
        return Engine(speaking, Retrieval(), SHAPE)

    with serving(engine(), learn=learning(tmp_path)) as up:
        first = cycles(up)
        eventually(lambda: up.figure("recorded_answers_total") == 1)
        second = cycles(up)
    with serving(engine(), learn=learning(tmp_path)) as up:
        eventually(lambda: up.service.traffic.answers.memory.num_tokens > 0)
        third = cycles(up)
    with serving(engine(), learn=learning(tmp_path, memory_tokens=0)) as up:
        unremembered = cycles(up)
    assert second == third < 0.7 * first and unremembered == first


def test_the_memory_forgets_what_is_too_old_for_the_ring(speaking, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "AGE_S", 0.0)
    with serving(Engine(speaking, Retrieval(), SHAPE), learn=learning(tmp_path, max_age_h=2 / 3600)) as up:
        memory = up.service.traffic.answers.memory
        up.ask()
        eventually(lambda: memory.num_tokens > 0)
        eventually(lambda: memory.num_tokens == 0)


@pytest.mark.parametrize(
    ("changes", "headers", "reason"),
    [
        ({}, {"X-No-Learn": "1"}, "opted_out"),
        ({"sample": 0.0}, {}, "not_sampled"),
        ({"client_tokens": 1}, {}, "client_limit"),
        ({"client_tokens": 1}, {"X-Forwarded-For": "10.0.0.9"}, "client_limit"),  # whatever address a client claims
    ],
)
def test_requests_are_left_out(speaking, tmp_path, changes, headers, reason):
    with serving(Engine(speaking), learn=learning(tmp_path, **changes)) as up:
        if reason == "client_limit":
            up.ask()
            eventually(lambda: up.figure("recorded_answers_total") == 1)
            up.service.traffic.budget.charge("10.0.0.1", 1)  # others are recorded too
        before = up.figure("recorded_answers_total")
        request = {"model": "tiny", "prompt": "left out", "temperature": 0, "max_tokens": 4}
        assert up.post(json=request, headers=headers).status_code == 200
        assert up.figure("unrecorded_answers_total", reason=reason) == 1
        assert up.figure("recorded_answers_total") == before


def test_a_server_that_only_records_says_so_and_deletes_what_a_killed_one_left(speaking, tmp_path, monkeypatch):
    lines, cleared = [], []
    monkeypatch.setattr(service, "say", lines.append)
    monkeypatch.setattr(service, "delete_texts", lambda *args: cleared.append(args))
    with serving(Engine(speaking), learn=replace(learning(tmp_path), train=True)):
        assert [args[0] for args in cleared] == [tmp_path / "ring"]
    assert lines == [
        "learn=on records answers, but no expert is trained, because only pools take experts, and no answer is "
        "looked up, because no drafter retrieves; drafter=pool does both"
    ]
    with serving(Engine(speaking, Retrieval(), SHAPE), learn=learning(tmp_path)):
        assert len(lines) == 1
    monkeypatch.setattr(LearnerProcess, "watch", lambda process: "running")
    pool = Pool({"retrieval": Retrieval()}, "static")
    with serving(Engine(speaking, pool, SHAPE), learn=replace(learning(tmp_path), train=True)):
        assert "trains no expert until " in lines[-1] and "type `drafterforge train-drafter domain=general" in lines[-1]


def test_learn_off_writes_no_file(speaking, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(Engine(speaking)) as up:
        assert up.ask().status_code == 200
        assert HTTP.get(f"{up.url}/health").json() == {"status": "ok"}
    assert list(tmp_path.iterdir()) == []


def test_a_recorder_that_fails_is_reported_and_serving_goes_on(speaking, tmp_path, monkeypatch):
    def fail(*args) -> None:
        raise OSError("no space")

    with serving(Engine(speaking), learn=learning(tmp_path)) as up:
        monkeypatch.setattr(up.service.traffic.answers.writer, "add", fail)
        assert up.ask().status_code == 200
        eventually(lambda: HTTP.get(f"{up.url}/health").json() == {"status": "ok", "recording": "failed"})
        assert up.ask().status_code == 200
        assert up.figure("unrecorded_answers_total", reason="failed") == 2  # both answers
        assert up.figure("learning_up") == 0


def test_a_disk_that_stays_full_stays_reported(speaking, tmp_path):
    with serving(Engine(speaking), learn=learning(tmp_path)) as up:
        writer = up.service.traffic.answers.writer
        writer.record = replace(writer.record, error="no space")  # its next try is due
        assert up.ask().status_code == 200
        eventually(lambda: up.figure("unrecorded_answers_total", reason="failed") == 1)
        assert HTTP.get(f"{up.url}/health").json() == {"status": "ok", "recording": "failed"}


def test_erasing_forgets_the_memory_of_a_running_server(speaking, tmp_path):
    with serving(Engine(speaking, Retrieval(), SHAPE), learn=learning(tmp_path)) as up:
        up.ask()
        eventually(lambda: up.service.traffic.answers.memory.num_tokens > 0)
        erase_stream(tmp_path / "ring")
        assert up.service.traffic.answers.memory.num_tokens == 0
    assert list(served_shards(tmp_path / "ring")) == []


def test_a_request_that_came_before_an_erasure_is_not_recorded(speaking, tmp_path):
    request = SimpleNamespace(client=None, headers={})
    row = SimpleNamespace(answer=Generation([3, 4], [5], stop_reason="eos"), outputs=None, text=[3, 4, 5])
    with serving(Engine(speaking), learn=learning(tmp_path)) as up:
        before = up.service._recording(request, 1)
        erase_stream(tmp_path / "ring")
        for record in (before, up.service._recording(request, 1)):
            record(row)
        eventually(lambda: up.figure("recorded_answers_total") == 1)
        assert up.figure("unrecorded_answers_total", reason="busy") == 1
