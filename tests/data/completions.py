"""A server of `/v1/completions` in a thread, which fails as it is told."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], dict[str, Any]]  # the choice that answers a request


@dataclass
class Completions:
    """What the server does, and what it has seen."""

    reply: Reply
    models: Sequence[str] = ("tiny",)
    faults: Sequence[str] = ()  # one of them may hit a request
    fault_rate: float = 0.0
    seed: int = 0
    hang_s: float = 0.0  # of the fault "hang"
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        self.random, self.lock = random.Random(self.seed), threading.Lock()

    def fault(self) -> str:
        """The fault of the next request; empty if it is answered."""
        with self.lock:
            hit = self.faults and self.random.random() < self.fault_rate
            fault = self.random.choice(list(self.faults)) if hit else ""
            self.hits[fault] += 1
        return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Completions

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.state.headers.append(dict(self.headers))
        self._send(200, {"data": [{"id": name} for name in self.state.models]})

    def do_POST(self) -> None:
        state = self.state
        with state.lock:
            state.in_flight += 1
            state.most_in_flight = max(state.most_in_flight, state.in_flight)
        try:
            self._answer(state)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with state.lock:
                state.in_flight -= 1

    def _answer(self, state: Completions) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state.headers.append(dict(self.headers))
        fault = state.fault()
        if fault.isdecimal():
            self._send(int(fault), {"error": {"message": f"fault {fault}"}}, {"Retry-After": "0.01"})
        elif fault == "reset":
            self.close_connection = True
        elif fault == "cut":
            self._send(200, {"choices": [state.reply(request)]}, missing=7)
        elif fault == "not JSON":
            self._send(200, "<html>a proxy's page</html>")
        elif fault == "no choices":
            self._send(200, {"error": "none"})
        elif fault == "unfinished":
            self._send(200, {"choices": [state.reply(request) | {"finish_reason": None}]})
        elif fault == "aborted":
            self._send(200, {"choices": [state.reply(request) | {"finish_reason": "abort"}]})
        else:
            if fault == "hang":
                time.sleep(state.hang_s)
            choice = state.reply(request)
            state.requests.append(request)
            usage = {"completion_tokens": choice.pop("count", None)}
            self._send(200, {"choices": [choice], "usage": usage})

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None, missing: int = 0) -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) - missing])
        self.wfile.flush()
        self.close_connection = self.close_connection or missing > 0


@contextmanager
def serving(state: Completions) -> Iterator[Completions]:
    """Serves until the block ends."""
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
