"""Methods whose servers are the fake `vllm`."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from drafterforge.evaluation.methods import Method
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.vllm_engine import VllmEngine
from drafterforge.evaluation.vllm_server import VllmServer

FAKE = Path(__file__).with_name("fake_vllm.py")
TARGET = SimpleNamespace(dtype=torch.float32, max_positions=2000)
POOL = "hedgespec over the pool"
NAMES = ("autoregressive", "general alone", POOL)
DRAFTERS = {"general alone": ["general"], POOL: ["general", "sql"]}
REQUESTS = [Request([5, index], "sql" if index % 2 else "math") for index in range(9)]


def write_program(folder: Path) -> Path:
    """An executable file that is the fake `vllm`."""
    program = folder / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    return program


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that nothing listens on."""
    for _ in range(100):
        first = 20000 + secrets.randbelow(12000)  # at random, because tests run in parallel; below outgoing ports
        probes = [socket.socket() for _ in range(count)]
        try:
            for number, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no free ports")


def fake_methods(folder: Path, names: tuple[str, ...] = NAMES, **options: Any) -> list[Method]:
    """Methods of the suite, on servers that are not started.  options: of the fake `vllm`."""
    program, port, methods = write_program(folder), free_ports(len(names)), []
    environment = os.environ | {"FAKE_VLLM": json.dumps(options)}
    for number, name in enumerate(names):
        words = [str(program), "serve", "MODEL", "--dtype", "float32", "--host", "127.0.0.1", "--port"]
        words.append(str(port + number))
        drafters = DRAFTERS.get(name, [])
        if drafters:
            model = folder / f"model-{number}"
            model.mkdir(exist_ok=True)
            (model / "config.json").write_text(json.dumps({"drafterforge_pool": drafters} if name == POOL else {}))
            drafting = {"method": "eagle3", "model": str(model), "num_speculative_tokens": 3}
            words += ["--speculative-config", json.dumps(drafting), "--per-request-spec-decode-metrics", "detailed"]
        server = VllmServer(name, words, port + number, folder / f"{number}.log", environment)
        selector = "none" if not drafters else "hedgespec" if name == POOL else "static"
        engine = VllmEngine(server, TARGET, bool(drafters))
        methods.append(Method(name, engine, selector, "static", drafters))
    return methods
