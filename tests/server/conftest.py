"""Tiny targets with a tokenizer behind a real server in a thread, on a free port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from drafterforge.config.serving import ServeConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.runtime.batch import Batch
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.server.app import build_app
from drafterforge.server.service import Service
from drafterforge.server.serving import Server, address_of, listen
from drafterforge.targets.load import Target, wrap_model
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_model
from tests.tiny import build_tokenizer

SHAPE = TreeShape(5, 2, 2)
MODEL = "tiny"
WAIT_S = 30.0  # longest wait for an expected event
HTTP = httpx.Client(timeout=WAIT_S, limits=httpx.Limits(max_keepalive_connections=0))


def speaking_target(dtype: torch.dtype = torch.float32, **changes: Any) -> Target:
    """A tiny Llama with a byte tokenizer; most of its answers are no valid UTF-8."""
    tokenizer = build_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": 4, "eos_token_id": None}
    model = tiny_model(dtype=dtype, **{**sizes, **changes})
    return wrap_model(model, tokenizer, name=MODEL, folder=Path("nowhere"))


def pool_of(target: Target) -> Pool:
    """Two random drafters and retrieval, picked by NormalHedge."""
    torch.manual_seed(2)
    drafters = {name: FusedDrafter(tiny_drafter(target), target.backbone.embedding) for name in ("one", "two")}
    return Pool({**drafters, "retrieval": Retrieval(min_probability=1e-3, min_expected=0.0)}, "normalhedge")


@dataclass
class Serving:
    """A running server and its clients."""

    url: str
    address: tuple[str, int]
    server: Server
    service: Service
    thread: threading.Thread

    @cached_property
    def client(self) -> OpenAI:
        """OpenAI's client without retries."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def post(self, path: str = "/v1/completions", **sent: Any) -> httpx.Response:
        return HTTP.post(self.url + path, **sent)

    def ask(self, **fields: Any) -> httpx.Response:
        """A completion request as plain JSON."""
        return self.post(json={"model": MODEL, "prompt": "ask", "temperature": 0, "max_tokens": 8, **fields})

    def figure(self, name: str, **labels: str) -> float:
        """A sample of `/metrics`; 0 where there is none."""
        text = HTTP.get(f"{self.url}/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        values = [
            sample.value
            for sample in samples
            if sample.name == f"drafterforge_{name}" and labels.items() <= sample.labels.items()
        ]
        return sum(values)

    def stop(self) -> None:
        self.server.should_exit = True


@contextmanager
def serving(engine: Engine, **changes: Any) -> Iterator[Serving]:
    """Serves the engine over HTTP until the block ends."""
    cfg, up, sock = ServeConfig(**changes), threading.Event(), listen("127.0.0.1", 0)
    server = Server(build_app(engine, MODEL, cfg), cfg.grace_s, ready=up.set)
    url, address = address_of(sock), sock.getsockname()
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    assert up.wait(WAIT_S)
    try:
        yield Serving(url, address, server, server.config.app.state.service, thread)
    finally:
        server.should_exit = True
        thread.join(WAIT_S + cfg.grace_s)
        assert not thread.is_alive()


def eventually(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture(scope="session")
def speaking() -> Target:
    return speaking_target()


@pytest.fixture(scope="session")
def shared(speaking) -> Iterator[Serving]:
    """A server with the cheapest drafter, for tests that do not change its state."""
    drafter = Retrieval(min_probability=1e-3, min_expected=0.0)
    with serving(Engine(speaking, drafter, SHAPE), max_body_bytes=20_000, max_new_tokens=60) as up:
        yield up


class Gate:
    """A gate that holds cycles until a test lets them pass."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)
        self.wide = threading.Event()
        self.error: Exception | None = None

    def let(self, cycles: int) -> None:
        self.steps.release(cycles)

    def open(self) -> None:
        self.wide.set()

    def passed(self) -> None:
        """Called before every cycle of a server."""
        if threading.current_thread().name != "drafterforge-worker":
            return
        limit = time.monotonic() + WAIT_S
        while not self.wide.is_set() and not self.steps.acquire(timeout=0.01):
            assert time.monotonic() < limit, "nobody let the cycle through"
        if self.error is not None:
            error, self.error = self.error, None
            raise error


@pytest.fixture
def gate(monkeypatch) -> Iterator[Gate]:
    """Holds every cycle of every server."""
    held_gate, cycle = Gate(), Batch.cycle

    def held(batch: Batch, shape: TreeShape) -> Any:
        held_gate.passed()
        return cycle(batch, shape)

    monkeypatch.setattr(Batch, "cycle", held)
    yield held_gate
    held_gate.open()
