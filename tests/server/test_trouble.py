"""Clients that disconnect, full queues, timeouts, failing engines, and a shutdown during a stream."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import openai
import pytest

from drafterforge.runtime.batch import Batch
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.server import streaming, worker
from drafterforge.server.exchange import Exchange
from drafterforge.server.metrics import Metrics
from drafterforge.server.service import LONG_BODY
from drafterforge.server.streaming import AnswerStream
from drafterforge.server.wire import CompletionWire
from drafterforge.server.worker import Job, Update, Worker
from tests.server.conftest import HTTP, MODEL, SHAPE, WAIT_S, eventually, pool_of, serving

pytestmark = pytest.mark.slow  # many short tests

ASK = {"model": MODEL, "prompt": "ask", "temperature": 0, "max_tokens": 30}
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"


@pytest.fixture
def expected(speaking) -> str:
    """The answer to `ASK`."""
    return Engine(speaking).generate(["ask"], 30, stop=["\x00never"])[0].text


@contextmanager
def open_stream(up, **fields):
    """A stream after its prefill."""
    with HTTP.stream("POST", f"{up.url}/v1/completions", json=ASK | {"stream": True} | fields) as response:
        lines = response.iter_lines()
        assert response.status_code == 200
        yield lines


def events(lines) -> list[dict]:
    """The remaining events of a stream."""
    payloads = [line.removeprefix("data: ") for line in lines if line]
    assert payloads[-1] == "[DONE]"
    return [json.loads(payload) for payload in payloads[:-1]]


def let_join(up, gate) -> None:
    """Let a second answer join the batch with the answer that the gate holds."""
    worker = up.service.worker
    eventually(lambda: len(worker.waiting) == 1 or len(worker.running) == 2)
    if len(worker.running) < 2:
        gate.let(1)
    eventually(lambda: len(worker.running) == 2)


def idle(up) -> bool:
    """Whether the batch and `/metrics` show no running and no waiting answer."""
    worker = up.service.worker
    return not worker.batch.rows and up.figure("answers_running") == up.figure("answers_waiting") == 0


@pytest.mark.parametrize("drafter", [pool_of, lambda target: None], ids=["pool", "alone"])
def test_a_client_that_disconnects_leaves_the_batch_and_the_others_continue(speaking, gate, expected, drafter):
    with serving(Engine(speaking, drafter(speaking), SHAPE)) as up, ThreadPoolExecutor(1) as pool:
        with open_stream(up, prompt="another", max_tokens=400):
            concurrent = pool.submit(lambda: up.ask(max_tokens=30).json()["choices"][0]["text"])
            let_join(up, gate)
            gate.let(1)
        eventually(lambda: up.figure("requests_total", status="499") == 1)
        gate.let(2)
        eventually(lambda: len(up.service.worker.batch.rows) == 1)
        gate.open()
        assert concurrent.result(WAIT_S) == expected
        eventually(lambda: idle(up))
        assert up.figure("answers_total", reason="dropped") == 1
        if isinstance(up.service.engine.drafter, Pool):
            assert len(up.service.engine.drafter.idle) == 2  # both selectors are free again
        assert up.ask(max_tokens=30).json()["choices"][0]["text"] == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_before_its_answer_leaves_too(speaking, gate, stream):
    with serving(Engine(speaking, max_batch=1)) as up, open_stream(up):
        body = json.dumps(ASK | {"stream": stream}).encode()
        with socket.create_connection(up.address) as sock:
            sock.sendall(HEAD.format(len(body)).encode() + body)
            eventually(lambda: len(up.service.worker.waiting) == 1)
        eventually(lambda: up.figure("requests_total", status="499") == 1)
        gate.open()
        eventually(lambda: idle(up))
        assert up.figure("answers_total", reason="dropped") == 1
        assert up.figure("prompt_tokens_total") == 3  # the second prompt was never read


def test_a_client_that_disconnects_inside_its_body_leaves_no_request(shared):
    before = shared.figure("requests_total", status="499")
    with socket.create_connection(shared.address) as sock:
        sock.sendall(HEAD.format(100).encode() + b"{")
    eventually(lambda: shared.figure("requests_total", status="499") == before + 1)
    assert shared.ask().status_code == 200


def test_a_short_request_is_read_while_long_ones_are_tokenized(speaking, monkeypatch):
    real, release = Engine.read, threading.Event()

    def read(engine, prompt, *limits, **options):
        if len(prompt) > LONG_BODY:
            assert release.wait(WAIT_S)
        return real(engine, prompt, *limits, **options)

    monkeypatch.setattr(Engine, "read", read)
    with serving(Engine(speaking)) as up, ThreadPoolExecutor(3) as pool:
        long = [pool.submit(up.ask, prompt="x" * (LONG_BODY + 1)) for _ in range(3)]
        assert up.ask().status_code == 200
        release.set()
        assert [answer.result(WAIT_S).status_code for answer in long] == [400] * 3  # longer than the context


def test_bodies_that_wait_to_be_tokenized_are_bounded_even_if_their_clients_hang_up(speaking, monkeypatch):
    real, release = Engine.read, threading.Event()

    def read(engine, prompt, *limits, **options):
        assert release.wait(WAIT_S)
        return real(engine, prompt, *limits, **options)

    monkeypatch.setattr(Engine, "read", read)
    body = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    request = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    limits = {"max_batch": 2, "max_waiting": 2, "max_choices": 1}
    with serving(Engine(speaking, max_batch=2), **limits) as up:
        for number in range(4):
            with socket.create_connection(up.address, timeout=WAIT_S) as sock:
                sock.sendall(request)
                eventually(lambda number=number: up.service.num_reading == [number + 1, 0])
        full = up.ask()
        release.set()
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        eventually(lambda: up.service.num_reading == [0, 0] and idle(up))
        assert up.ask().status_code == 200


def test_a_full_queue_answers_with_retry_after(speaking, gate):
    with serving(Engine(speaking, max_batch=1), max_batch=1, max_waiting=1, max_choices=2) as up, open_stream(up):
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(up.ask)
            eventually(lambda: up.figure("answers_waiting") == 1)
            full = up.ask()
            assert (full.status_code, full.headers["Retry-After"]) == (429, "1")
            assert full.json()["error"]["code"] == "queue_full" and full.json()["error"]["type"] == "rate_limit_error"
            with pytest.raises(openai.RateLimitError):
                up.client.completions.create(**ASK)
            gate.open()
            assert waits.result(WAIT_S).status_code == 200
        assert up.ask(n=2).status_code == 200  # after the queue has room again
        assert up.figure("requests_total", status="429") == 2


def test_an_answer_that_takes_too_long_is_a_timeout(speaking, gate):
    with serving(Engine(speaking, max_batch=2), timeout_s=1.5) as up:
        with open_stream(up) as lines, ThreadPoolExecutor(2) as pool:
            late, later = pool.submit(up.ask), pool.submit(up.client.completions.create, **ASK)
            assert events(lines)[-1]["error"]["code"] == "timeout"
        assert late.result().status_code == 504 and late.result().json()["error"]["code"] == "timeout"
        with pytest.raises(openai.InternalServerError, match="longer than"):
            later.result()
        gate.open()
        eventually(lambda: idle(up))
        assert up.figure("requests_total", status="504") == 3
        assert up.figure("answers_total", reason="dropped") == 3
        assert up.ask(max_tokens=2).status_code == 200


def test_a_body_that_takes_too_long_is_a_timeout(speaking):
    def drip():
        yield b"{"
        time.sleep(0.4)
        yield b"}"

    with serving(Engine(speaking), timeout_s=0.2) as up:
        assert up.post(content=drip()).status_code == 408
        assert up.figure("requests_total", status="408") == 1


@pytest.mark.parametrize("drafter", [pool_of, lambda target: None], ids=["pool", "alone"])
def test_a_failing_cycle_fails_its_answers_and_no_others(speaking, gate, expected, caplog, drafter):
    engine = Engine(speaking, drafter(speaking), SHAPE, max_batch=2)
    with serving(engine) as up, ThreadPoolExecutor(2) as pool:
        with open_stream(up) as lines:
            complete = pool.submit(up.ask)
            let_join(up, gate)
            waits = pool.submit(up.ask, max_tokens=30)
            eventually(lambda: len(up.service.worker.waiting) == 1)
            gate.error = RuntimeError("the device is on fire")
            gate.open()
            assert complete.result(WAIT_S).status_code == 500
            assert (
                "on fire" not in complete.result().text and complete.result().json()["error"]["type"] == "server_error"
            )
            assert events(lines)[-1]["error"]["code"] == "decoding_failed"
        assert waits.result(WAIT_S).json()["choices"][0]["text"] == expected
        assert "on fire" in caplog.text
        eventually(lambda: idle(up))
        assert up.figure("answers_total", reason="failed") == up.figure("requests_total", status="500") == 2


def health(up) -> tuple[int, str]:
    response = HTTP.get(f"{up.url}/health")
    return response.status_code, response.json()["status"]


def test_health_reports_a_failing_cycle_until_one_succeeds(speaking, gate):
    gate.open()
    with serving(Engine(speaking)) as up:
        for _ in range(2):
            gate.error = RuntimeError("the device is on fire")
            assert up.ask().status_code == 500
            assert health(up) == (503, "failing")
        assert up.ask(max_tokens=1).status_code == 200  # needs only its prefill
        assert health(up) == (503, "failing")
        assert up.ask().status_code == 200
        assert health(up) == (200, "ok")


def test_a_server_that_gets_no_requests_recovers_from_a_failure(speaking, gate, monkeypatch):
    gate.open()
    with serving(Engine(speaking)) as up:
        gate.error = RuntimeError("the device is on fire")
        assert up.ask().status_code == 500
        assert health(up) == (503, "failing")
        monkeypatch.setattr(worker, "RECOVERY_S", 0.0)
        assert health(up) == (200, "ok")


def test_health_reports_failing_prefills(speaking, monkeypatch):
    with serving(Engine(speaking)) as up:
        with monkeypatch.context() as patch:
            patch.setattr(Batch, "begin", lambda *_: 1 / 0)
            assert up.ask().status_code == 500
            assert health(up) == (503, "failing")
        assert up.ask().status_code == 200
        assert health(up) == (200, "ok")


def test_a_server_whose_worker_dies_tells_its_clients_and_ends(speaking, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with serving(Engine(speaking)) as up:
        monkeypatch.setattr(Worker, "_step", lambda _: (_ for _ in ()).throw(SystemError("gone")))
        assert up.ask().status_code == 500
        eventually(lambda: not up.thread.is_alive())
        assert up.service.health == (503, {"status": "failing"}) and up.server.worker.dead


def test_a_stream_that_fails_is_an_error_of_the_client(speaking, gate):
    with serving(Engine(speaking)) as up:
        stream = up.client.completions.create(stream=True, **ASK)
        gate.error = RuntimeError("the device is on fire")
        gate.open()
        with pytest.raises(openai.APIError, match="decoding failed"):
            list(stream)


@pytest.mark.parametrize("inside", [False, True])
def test_a_prompt_that_cannot_be_read_fails_alone_unless_the_batch_is_broken(
    speaking, gate, expected, monkeypatch, inside
):
    name = "_join" if inside else "_picker"  # after, and before, the row is in the batch
    real = getattr(Batch, name)

    def failing(batch, rows, *more):
        if threading.current_thread().name == "drafterforge-worker" and doomed and batch.rows:
            doomed.pop()
            raise MemoryError("no room")
        return real(batch, rows, *more)

    doomed: list[bool] = []
    monkeypatch.setattr(Batch, name, failing)
    with serving(Engine(speaking)) as up:
        with open_stream(up) as lines:
            doomed.append(True)
            with ThreadPoolExecutor(1) as pool:
                failed = pool.submit(up.ask)
                eventually(lambda: len(up.service.worker.waiting) == 1)
                gate.open()
                assert failed.result(WAIT_S).status_code == 500
            last = events(lines)[-1]
        assert ("error" in last) == inside
        assert up.ask(max_tokens=30).json()["choices"][0]["text"] == expected
        eventually(lambda: idle(up))


# Shutdown.


def test_a_running_stream_may_finish_while_the_server_closes_and_new_requests_are_refused(speaking, gate, expected):
    with serving(Engine(speaking), grace_s=WAIT_S) as up:
        with open_stream(up) as lines:
            up.stop()
            eventually(lambda: HTTP.get(f"{up.url}/health").status_code == 503)
            refused = up.ask()
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
            assert refused.headers["Retry-After"] == "5"
            gate.open()
            chunks = events(lines)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        up.thread.join(WAIT_S)
        assert not up.thread.is_alive() and not up.service.worker.alive
        with pytest.raises(httpx.ConnectError):
            HTTP.get(f"{up.url}/health")


def test_a_stream_that_outlasts_the_grace_period_ends_with_an_error(speaking, gate):
    with serving(Engine(speaking), grace_s=0.2) as up:
        with open_stream(up) as lines:
            up.stop()
            eventually(lambda: HTTP.get(f"{up.url}/health").status_code == 503)
            time.sleep(0.3)
            gate.let(1)
            assert events(lines)[-1]["error"]["code"] == "shutting_down"
        up.thread.join(WAIT_S)
        assert not up.thread.is_alive() and not up.service.worker.alive


def test_a_second_signal_does_not_wait(speaking, gate):
    with serving(Engine(speaking), grace_s=60) as up, open_stream(up) as lines:
        up.server.handle_exit(15, None)
        eventually(lambda: HTTP.get(f"{up.url}/health").status_code == 503)
        up.server.handle_exit(15, None)
        up.thread.join(WAIT_S / 2)
        assert not up.thread.is_alive()
        assert events(lines)[-1]["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_signal_refuses_the_requests_that_wait(speaking, gate, stream, caplog):
    with serving(Engine(speaking, max_batch=1), grace_s=60) as up, ThreadPoolExecutor(2) as pool, open_stream(up):
        waiting = pool.submit(up.ask, stream=stream)
        eventually(lambda: up.service.worker.num_jobs == 2)
        with socket.create_connection(up.address) as half:
            half.sendall(HEAD.format(100).encode() + b"{")
            eventually(lambda: len(up.server.server_state.tasks) == 3)
            for _ in range(2):
                up.server.handle_exit(15, None)
            refused = waiting.result(WAIT_S / 2)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            half.settimeout(WAIT_S)
            assert half.recv(4096).startswith(b"HTTP/1.1 503 ")
        up.thread.join(WAIT_S / 2)
        assert not up.thread.is_alive()
    assert "Traceback" not in caplog.text


def test_a_client_that_stops_reading_is_cut_off_some_time_after_its_request(speaking, monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(streaming, "LINGER_S", 0.1)
    monkeypatch.setattr(streaming.log, "warning", lambda text, *_: warnings.append(text))
    worker, counted = Worker(Engine(speaking), Metrics("none"), max_waiting=8), []

    async def stuck(message: dict | None = None) -> None:
        await asyncio.sleep(60)

    async def stream() -> list[bool]:
        exchange = Exchange(worker, timeout_s=0.1)
        exchange.jobs = [Job([1], None, None, deliver=print)]
        first = 0, Update("text", 1)
        response = AnswerStream(exchange, CompletionWire(MODEL, ""), first, 1, False, counted.append)
        await response({"type": "http", "asgi": {"spec_version": "2.3"}}, stuck, stuck)
        return [job.dropped for job in exchange.jobs]

    assert asyncio.run(stream()) == [True] and counted == [499]
    assert len(warnings) == 1 and "did not read its answer" in warnings[0]
