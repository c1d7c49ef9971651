"""`serve`: mistakes are one line, and a signal ends a server that has answered."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from drafterforge.assembly.engines import open_engine
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.serving import ServeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.errors import ConfigError
from drafterforge.pipelines import serve
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.server.serving import Server, address_of, is_loopback, listen
from tests.programs import Program

pytestmark = pytest.mark.slow  # whole programs


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("port=70000", "port must lie in [0, 65535], got 70000"),
        ("max_batch=0", "max_batch must be >= 1, got 0"),
        ("timeout_s=0", "timeout_s must be > 0, got 0"),
        ("read_timeout_s=0", "read_timeout_s must be > 0, got 0"),
        ("max_connections=0", "max_connections must be >= 1, got 0"),
        ("max_choices=99", "type max_choices=72"),
        ("host=no.such.host.invalid", "cannot serve at host=no.such.host.invalid port=8000"),
        ("host=a..b", "cannot serve at host=a..b port=8000 (it is no host name)"),
        ("bundle=mine", "no bundle named 'mine' for target"),
        ("drafter=nowhere", "no drafters named 'nowhere'"),
        ("learn.sample=0.2", "learn.sample= is read with learn=on only"),
        ("runtime.numerics=exact", "runtime.numerics must be one of"),
    ],
)
def test_a_mistake_is_one_line(bench, typed, expected):
    port = () if "host" in typed or "port" in typed else ("port=0",)
    assert expected in bench("serve", *port, typed).one_line()


@pytest.mark.parametrize("key", [" ", "key ", "key\r", "\udcff", "two words"], ids=ascii)
def test_a_key_that_no_client_can_send_is_refused_without_being_printed(bench, monkeypatch, key):
    monkeypatch.setenv("DRAFTERFORGE_API_KEY", key)
    line = bench("serve", "port=0").one_line()
    assert "the API key holds spaces, line ends or bytes that are no UTF-8; set another DRAFTERFORGE_API_KEY" in line


def test_an_address_in_use_is_one_line_before_the_target_is_loaded(bench, monkeypatch):
    monkeypatch.setattr(serve, "open_engine", pytest.fail)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        line = bench("serve", f"port={port}").one_line()
    assert f"cannot serve at host=127.0.0.1 port={port}" in line and "in use" in line


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client"])
def test_without_the_extra_one_line_says_how_to_get_it(bench, monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("drafterforge.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert f'serve needs {missing}; type pip install ".[serve]" in the repository' in bench("serve").one_line()


@pytest.mark.parametrize(
    ("typed", "environment", "warned"),
    [
        (["host=0.0.0.0"], "", True),
        (["host=0.0.0.0", "api_key=sesame"], "", False),
        (["host=0.0.0.0"], "sesame", False),
        ([], "", False),
        (["host=localhost"], "", False),
    ],
)
def test_serving_everyone_without_a_key_warns_and_a_key_is_never_printed(
    bench, monkeypatch, typed, environment, warned
):
    seen = []
    monkeypatch.setenv("DRAFTERFORGE_API_KEY", environment)
    monkeypatch.setattr(Server, "run", lambda server, sockets: seen.append(is_loopback(sockets[0])))
    done = bench("serve", "port=0", *typed)
    assert done.code == 0 and seen == ["host=0.0.0.0" not in typed]
    assert ("warning: host=0.0.0.0 serves everyone" in done.err) == warned
    assert "sesame" not in done.err + done.out


def test_ipv6_loopback_is_loopback():
    try:
        sock = listen("::1", 0)
    except ConfigError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with sock:
        assert is_loopback(sock) and address_of(sock).startswith("http://[::1]:")


def test_the_engine_follows_the_configuration(trained):
    hf = TargetConfig(name="tiny", source="hf", model=str(trained.target))
    common = {"target": hf, "runs_dir": str(trained.runs), "max_batch": 3}
    engine, model = open_engine(ServeConfig(drafter="", **common), 3)
    assert (model, engine.drafter, engine.max_batch, engine.shape.num_tokens) == ("tiny", None, 3, 1)
    engine, _ = open_engine(ServeConfig(drafter="pool", runtime=RuntimeConfig(num_tokens=5), **common))
    assert isinstance(engine, Engine) and isinstance(engine.drafter, Pool) and engine.shape.num_tokens == 5
    assert engine.drafter.names == ["sql", "retrieval"]


def test_a_bundle_is_served_under_its_name_with_the_typed_settings(trained):
    assert trained("export", "bundle=house").code == 0
    hf = TargetConfig(name="tiny", source="hf", model=str(trained.target))
    common = {"target": hf, "runs_dir": str(trained.runs), "bundle": "house"}
    engine, model = open_engine(ServeConfig(**common), 3)
    assert (model, engine.max_batch, engine.drafter.names) == ("house", 3, ["sql+retrieval"])
    engine, model = open_engine(ServeConfig(**common, drafter="pool"), 3)
    assert (model, engine.max_batch, engine.drafter.names) == ("house", 3, ["sql", "retrieval"])
    options = {"pool": PoolConfig(selector="ucb1"), "runtime": RuntimeConfig(num_tokens=5, depth=2)}
    engine, model = open_engine(
        ServeConfig(**common | {"bundle": str(trained.artifact("bundles", "house"))}, **options)
    )
    assert (model, engine.drafter.choose, engine.shape.num_tokens) == ("house", "ucb1", 5)
    with pytest.raises(ConfigError, match=r"a bundle fixes pool\.drafters"):
        open_engine(ServeConfig(**common, pool=PoolConfig(drafters=["sql"])))


@contextmanager
def program(target: Path, *typed: str, **more: Any) -> Iterator[subprocess.Popen]:
    """`drafterforge serve` in another process."""
    command = [sys.executable, "-m", "drafterforge", "serve", "target=hf", f"target.model={target}"]
    pipes = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "target.name=tiny", "port=0", *typed], **pipes, **more) as process:
        try:
            yield process
        finally:
            process.kill()


def test_more_silent_clients_than_files_leave_the_server_up_and_its_log_short(bench, tmp_path):
    limits = {"preexec_fn": partial(resource.setrlimit, resource.RLIMIT_NOFILE, (256, 256))}
    log = tmp_path / "log"
    with log.open("w") as stderr, program(bench.target, "target.dtype=float32", stderr=stderr, **limits) as process:
        deadline = time.monotonic() + 60
        while not (address := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection(("127.0.0.1", int(address[1])), timeout=10))
            for _ in range(3):
                assert httpx.get(f"{address[0]}/health", timeout=10).status_code == 200
                body = {"model": "tiny", "prompt": "ask", "max_tokens": 4}
                assert httpx.post(f"{address[0]}/v1/completions", json=body, timeout=10).status_code == 200
                time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert "warning: the limit of open files allows 192 connections" in log.read_text()
    assert len(log.read_text()) < 2_000 and "Traceback" not in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_after_its_stream(trained, number):
    command = [sys.executable, "-m", "drafterforge", "serve", "target=hf", f"target.model={trained.target}"]
    command += ["target.name=tiny", f"runs_dir={trained.runs}", "drafter=sql", "port=0"]
    # a shell starts background jobs with SIGINT ignored, and children inherit that
    hears = {"preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"DRAFTERFORGE_API_KEY": "sesame"}
    with Program(command, env=environment, **pipes, **hears) as process:
        first_line = process.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/v1", first_line)[0]
        client = OpenAI(base_url=url, api_key="sesame", max_retries=0)
        assert [model.id for model in client.models.list()] == ["tiny"]
        fields = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
        full = client.chat.completions.create(max_tokens=200, **fields).choices[0]
        stream = client.chat.completions.create(max_tokens=200, stream=True, **fields)
        text = next(stream).choices[0].delta.content
        process.send_signal(number)
        text += "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        out, rest = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert text == full.message.content
    waits = "(accepted answers to finish: 1; a second signal ends at once\n)?"  # not if the answer has ended by then
    assert re.fullmatch(f"{waits}the server has stopped\n", rest) and "sesame" not in first_line
