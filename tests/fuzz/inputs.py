"""Readers of what is typed, of files of text, and of requests, with valid ones to damage."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from drafterforge.cli import COMMANDS
from drafterforge.cli.run import _check_inputs as check_config
from drafterforge.config import compose
from drafterforge.config.catalogue import command_groups, config_keys, group_choices
from drafterforge.data.questions import load_questions
from drafterforge.data.sources import jsonl_rows
from drafterforge.errors import DrafterforgeError
from drafterforge.prompts.files import read_tasks, read_yaml
from drafterforge.runtime.engine import Engine
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import documents, mixed, mutate_bytes, mutate_json
from tests.server.conftest import serving, speaking_target

SERVER_S = 5.0  # longest wait for an answer of the server


class RefusedError(DrafterforgeError):
    """A server answered 4xx, or closed the connection."""


def overrides(folder: Path) -> Reader:
    """What is typed after a command: lines of `command`, then overrides."""
    names = sorted(name for name in COMMANDS if name not in ("plan", "inspect", "learn"))
    lines = []
    for name in names:
        row = COMMANDS[name]
        groups = command_groups(row.name)
        choices = [f"{group}={choice}" for group in groups for choice in group_choices(group)[:3]]
        lines += [[name, *choices[:4]], *([name, f"{key}=1"] for key in config_keys(row.config))]
    seeds = ["\n".join(line).encode() for line in lines]
    keys = sorted({line[1].partition("=")[0] for line in lines if len(line) > 1})
    values = st.sampled_from(("", "null", "[", "[1,2]", "{a: b}", "1e400", "-1", "9" * 5000, "sql", "${oc.env:HOME}"))
    typed = st.builds(
        lambda key, equals, value: f"{key}{equals}{value}",
        st.sampled_from(keys) | st.text(max_size=8),
        st.sampled_from(("=", "", "==", "+=", "~")),
        values | st.text(max_size=30) | st.integers().map(str) | st.floats().map(str),
    )
    structured = st.builds(
        lambda name, rest: "\n".join([name, *rest]).encode("utf-8", "surrogatepass"),
        st.sampled_from(names),
        st.lists(typed, max_size=5),
    )

    composed = cache(lambda name, config, choices: compose_yaml(name, config, dict(choices)))  # hydra takes 0.1 s

    def compose_once(name: str, config: type, choices: Mapping[str, str]) -> dict[str, Any]:
        return copy.deepcopy(composed(name, config, tuple(sorted(choices.items()))))

    compose_yaml, compose._compose = compose._compose, compose_once

    def read(data: bytes) -> None:
        name, *rest = data.decode("utf-8", "replace").split("\n")
        if name not in names:
            raise RefusedError("no such command")
        row = COMMANDS[name]
        check_config(compose.load_config(row.name, row.config, rest), row)

    return Reader("overrides", read, folder, seeds, mutate_bytes, structured, any_seed=True)


def grammars(folder: Path) -> Reader:
    """A grammar file of one's own."""
    path = folder / "grammar.yaml"
    seeds = [
        b"lists:\n  a: [x, y]\ntasks:\n- task: t {a}\n  for: {a: a}\n  text: Say {a}.\n",
        b"tasks:\n- task: n {i}\n  for: {i: 1..9}\n  let: {j: i * 2}\n  asks: [What is {i} plus {j}?]\n",
        b"a: &a [x, x]\nb: &b [*a, *a]\ntasks: *b\n",
    ]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_yaml.cache_clear()
        for number, (_, write) in enumerate(read_tasks(path)):
            write(random.Random(0))
            if number > 20:
                break

    return Reader("grammars", read, folder, seeds, mutate_bytes, any_seed=True)


def jsonl(folder: Path) -> Reader:
    """A file of prompts."""
    path = folder / "prompts.jsonl"
    user, answer = {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two."}
    rows = [
        {"id": "a", "messages": [{"role": "system", "content": "Be kind."}, user, answer, user], "task": "t"},
        {"prompt": "Count.", "split": "test", "licence": "MIT", "domain": "sql"},
        {"turns": ["One?", "Two?"], "group": "g"},
        {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]},
    ]
    seeds = [json.dumps(row).encode() + b"\n" for row in rows]
    keys = ["id", "messages", "task", "prompt", "split", "licence", "domain", "turns", "group", "conversations"]
    keys += ["role", "content", "from", "value"]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for row in jsonl_rows(path):
            for message in row.messages:
                message["content"].encode()
            json.dumps([row.id, row.domain, row.task], ensure_ascii=False).encode()

    structured = documents(keys).map(lambda content: json.dumps(content).encode() + b"\n")
    return Reader("jsonl", read, folder, seeds, mixed(mutate_json, mutate_bytes), structured)


def questions(folder: Path) -> Reader:
    """A file of benchmark questions."""
    path = folder / "gsm8k.jsonl"
    rows = [
        {"question_id": 1, "category": "math", "turns": ["How many?", "And now?"], "reference": ["Two."]},
        {"id": "a", "domain": "sql", "messages": [{"role": "user", "content": "Count."}], "category": "c"},
    ]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for question in load_questions(path):
            json.dumps(dataclasses.asdict(question), ensure_ascii=False).encode()

    structured = documents(sorted({*rows[0], *rows[1]})).map(lambda content: json.dumps(content).encode() + b"\n")
    seeds = [json.dumps(row).encode() + b"\n" for row in rows]
    return Reader("questions", read, folder, seeds, mixed(mutate_json, mutate_bytes), structured)


def requests(folder: Path) -> Reader:
    """HTTP requests as bytes, to a server without a key."""
    plain = {"model": "tiny", "prompt": "ask", "max_tokens": 2, "temperature": 0, "seed": 1, "stop": ["x"], "n": 1}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    chat["stream_options"] = {"include_usage": True}

    def post(path: str, content: Any) -> bytes:
        body = json.dumps(content).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body

    get = "GET {} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nConnection: close\r\n\r\n"
    seeds = [post("/v1/completions", plain), post("/v1/chat/completions", chat)]
    seeds += [get.format(path).encode() for path in ("/v1/models", "/health", "/metrics", "/v1/models/tiny")]

    def mutate(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
        head, _, body = data.partition(b"\r\n\r\n")
        if body and chance.random() < 0.6:
            path = "/v1/completions" if b"/v1/completions" in head else "/v1/chat/completions"
            return post(path, json.loads(mutate_json(body, chance)))
        return mutate_bytes(data, chance, seeds)

    limits = {"max_body_bytes": 20_000, "max_new_tokens": 8, "read_timeout_s": 0.05, "timeout_s": 3.0}
    server = ExitStack()  # never closed: it runs until the process ends
    serve = cache(lambda: server.enter_context(serving(Engine(speaking_target()), **limits)).address)

    def read(data: bytes) -> None:
        status = status_of(serve(), data)
        if status is None or 400 <= status < 500:
            raise RefusedError(str(status))
        assert status < 400, f"status {status}"

    bodies = documents([*plain, *chat, "role", "content"])
    paths = st.sampled_from(("/v1/completions", "/v1/chat/completions"))
    return Reader("requests", read, folder, seeds, mutate, st.builds(post, paths, bodies), connects=True)


def status_of(address: tuple[str, int], data: bytes) -> int | None:
    """The status of the answer to some bytes; None if the server closes the connection without one."""
    with socket.create_connection(address, timeout=SERVER_S) as sock:
        received = b""
        with suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(data)
            while b"\r\n" not in received and (part := sock.recv(65536)):
                received += part
    words = received.split(b"\r\n", 1)[0].split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None
