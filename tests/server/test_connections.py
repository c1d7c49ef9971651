"""Clients that connect and stay silent, that send slowly, or that are too many: others are answered all the same."""

from __future__ import annotations

import errno
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from drafterforge.runtime.engine import Engine
from drafterforge.server import connections
from drafterforge.server.connections import RESERVED_FILES, Connections, connection_limit
from tests.server.conftest import HTTP, WAIT_S, eventually, serving

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"


@contextmanager
def clients(up, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have sent nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(up.address, timeout=WAIT_S)) for _ in range(count)]


def is_closed(sock: socket.socket) -> bool:
    """Whether the server has closed the connection, without an answer."""
    sock.settimeout(0)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def seconds_until_closed(sock: socket.socket, drip: bytes = b"") -> float:
    """Seconds until the server closes, while a byte is sent now and then."""
    start = time.monotonic()
    for byte in drip:
        if is_closed(sock):
            break
        sock.settimeout(WAIT_S)
        try:
            sock.sendall(bytes([byte]))
        except (ConnectionResetError, BrokenPipeError):
            break
        time.sleep(0.05)
    eventually(lambda: is_closed(sock))
    return time.monotonic() - start


def test_at_the_limit_silent_clients_make_room_and_the_others_are_answered(speaking):
    with serving(Engine(speaking), max_connections=8) as up, clients(up, 40) as silent:
        assert HTTP.get(f"{up.url}/health").status_code == 200
        assert up.ask().status_code == 200
        assert len(up.service.connections.open) <= 8
        eventually(lambda: sum(map(is_closed, silent)) >= 32)
        assert [is_closed(sock) for sock in silent] == sorted(map(is_closed, silent), reverse=True)  # oldest first


def test_clients_with_half_a_request_do_not_take_the_place_of_later_ones(speaking):
    with serving(Engine(speaking), max_connections=4) as up, clients(up, 5) as halves:
        for half in halves[1:]:
            half.sendall(BODY_HEAD)
        eventually(lambda: sum(connection.has_header for connection in up.service.connections.open) == 4)
        with clients(up, 3) as later:
            eventually(lambda: sum(map(is_closed, halves)) == 4)
            later[0].sendall(HEALTH)
            assert later[0].recv(4096).startswith(b"HTTP/1.1 200 ")
        assert up.ask().status_code == 200


def test_an_upload_over_an_old_connection_is_not_the_one_that_is_silent_the_longest(speaking):
    with serving(Engine(speaking), max_connections=2) as up, clients(up, 1) as (old,), clients(up, 1) as (silent,):
        eventually(lambda: len(up.service.connections.open) == 2)
        old.sendall(BODY_HEAD)
        eventually(lambda: any(connection.has_header for connection in up.service.connections.open))
        with clients(up, 1):
            eventually(lambda: is_closed(silent))
            assert not is_closed(old)


def test_more_requests_than_connections_are_a_503_in_the_usual_shape(speaking, gate):
    with serving(Engine(speaking, max_batch=4), max_connections=2) as up, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(up.ask) for _ in range(2)]
        eventually(lambda: up.service.worker.num_jobs == 2)
        for _ in range(3):
            refused = up.ask()
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert refused.headers["Retry-After"] == "5"
        assert HTTP.get(f"{up.url}/health").status_code == 200
        gate.open()
        assert [answer.result(WAIT_S).status_code for answer in answers] == [200, 200]
        assert up.ask().status_code == 200
        assert up.figure("requests_total", status="503") == 3


@pytest.mark.parametrize("sent", [b"", HEALTH[:20], HEALTH * 2 + HEALTH[:20]], ids=["nothing", "half", "third"])
def test_a_client_without_a_whole_header_is_closed_in_time(speaking, sent):
    with serving(Engine(speaking), read_timeout_s=0.5) as up, clients(up, 1) as (slow,):
        slow.sendall(sent)
        if b"\r\n\r\n" in sent:
            eventually(lambda: not is_closed(slow) and up.server.server_state.total_requests == 2)
            slow.settimeout(WAIT_S)
            while slow.recv(4096)[-15:] != b'{"status":"ok"}':
                pass
        assert 0.3 < seconds_until_closed(slow, drip=b"x" * 200) < 9
        eventually(lambda: not up.service.connections.open)


def test_a_client_that_finishes_its_header_in_time_is_answered_and_kept(speaking):
    with serving(Engine(speaking), read_timeout_s=1.0) as up, clients(up, 1) as (slow,):
        for part in (HEALTH[:10], HEALTH[10:]):
            slow.sendall(part)
            time.sleep(0.2)
        time.sleep(1.1)
        slow.sendall(HEALTH)  # the time for a header begins with its first byte
        received = b""
        while received.count(b'{"status":"ok"}') < 2:
            received += slow.recv(4096)


def test_a_body_that_pauses_too_long_is_a_408(speaking):
    with serving(Engine(speaking), read_timeout_s=0.3) as up, clients(up, 1) as (slow,):
        start = time.monotonic()
        slow.sendall(BODY_HEAD)
        time.sleep(0.2)
        slow.sendall(b" ")  # the time begins again with every part
        assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert 0.45 < time.monotonic() - start < 10


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_body_that_breaks_the_protocol_is_a_400_and_nothing_in_the_log(speaking, caplog):
    with serving(Engine(speaking), api_key="key") as up, clients(up, 1) as (sock,):
        sock.sendall(CHUNKED + b"ZZZ\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")
        eventually(lambda: is_closed(sock))
    assert not caplog.records


def test_a_body_that_breaks_the_protocol_after_its_answer_closes_the_connection(speaking, caplog):
    with serving(Engine(speaking), api_key="key") as up, clients(up, 1) as (sock,):
        sock.sendall(CHUNKED)
        assert sock.recv(1000).startswith(b"HTTP/1.1 401 ")
        sock.sendall(b"ZZZ\r\n")
        eventually(lambda: is_closed(sock))
        assert b'status="401"} 1.0' in up.service.metrics.text()
    assert not caplog.records


def test_a_failing_accept_is_one_line_and_tried_again(speaking, caplog, monkeypatch):
    real, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files") for _ in range(3)]

    def accept(sock):
        if failures:
            raise failures.pop()
        return real(sock)

    with serving(Engine(speaking)) as up:
        HTTP.get(f"{up.url}/health")
        monkeypatch.setattr(connections, "RETRY_S", 0.05)
        monkeypatch.setattr(socket.socket, "accept", accept)
        assert HTTP.get(f"{up.url}/health").status_code == 200
    assert not failures
    assert caplog.text.count("Too many open files") == 1 and "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("max_files", "limit"), [(256, 256 - RESERVED_FILES), (10, 1), (10_000, 300), (resource.RLIM_INFINITY, 300)]
)
def test_connections_leave_descriptors_for_files(monkeypatch, max_files, limit):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (max_files, resource.RLIM_INFINITY))
    assert connection_limit(300) == limit == Connections(300, 1.0).limit
