"""No command evaluates text as code, unpickles, or starts a program, whatever its libraries could do."""

from __future__ import annotations

import builtins
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
import torch

from drafterforge.cli import COMMANDS
from drafterforge.kernels import native
from tests.faults.harness import Bench, Command, FileLayer, start
from tests.pipelines.conftest import EXPERT, PLAIN, SMOKE
from tests.tiny import save_tiny_target

pytestmark = pytest.mark.slow  # whole programs

EVENTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class"}
# what may call eval: the standard library's named tuples and annotations, whose text is that of installed code
EVALUATES = ("collections", "typing", "dataclasses", "inspect", "functools", "pydantic", "torch", "sympy", "fastapi")
FEW = ("suite.num_prompts=4", "suite.timed_prompts=0", "limit=1")
TYPED = {
    "prepare-data": ("domain=python", "experiment=smoke"),
    "train-drafter": (*EXPERT[1:], "domain=chat", "name=fourth"),
    "train-policy": ("policy=planner", "experiment=smoke", "drafter=general", "live.num_prompts=1"),
    "calibrate": ("experiment=smoke", "drafter=sql"),
    "eval": ("suite=domains", "experiment=smoke", "suite.domains=[sql,math]", *FEW),
    "generate": ("prompt=How many?", "drafter=sql", "max_new_tokens=4"),
    "export": ("format=sglang", "drafter=general"),
    "import": ("path=runs/tiny/exports/general-sglang", "name=imported"),
    "quickstart": ("experiment=smoke", "first_prompts=1", "first_tokens=4"),
    "plan": ("train-drafter", "domain=sql", *SMOKE, "device=h100"),
    "learn": ("status",),
    "doctor": (),
    "inspect": ("runs/tiny/drafters/general",),
}


def trap(layer: FileLayer) -> None:
    """From now on, what must not happen ends the command with a traceback."""
    evaluate = builtins.eval

    def spring(what: str) -> NoReturn:
        print(f"TRAPPED {what}", flush=True)
        raise AssertionError(f"TRAPPED {what}")

    def trapped_eval(source: Any, *scope: Any, **more: Any) -> Any:
        module = sys._getframe(1).f_globals.get("__name__", "")
        if module.partition(".")[0] not in EVALUATES:
            spring(f"eval of {str(source)[:80]!r} by {module}")
        frame = sys._getframe(1)
        return evaluate(source, *(scope or (frame.f_globals, frame.f_locals)), **more)

    def refuse(name: str) -> Callable[..., NoReturn]:
        return lambda *_, **__: spring(name)

    builtins.eval = trapped_eval
    pickle.load = pickle.loads = refuse("pickle.load")
    torch.load = refuse("torch.load")
    sys.addaudithook(lambda event, arguments: spring(f"{event} {str(arguments)[:100]}") if event in EVENTS else None)


@pytest.fixture(autouse=True)
def kernels() -> None:
    """Asks the C compiler for its version before the traps: a command does so once, whatever it reads."""
    native.library()


@pytest.fixture
def trapped(pool_runs, tiny_folder, tmp_path, monkeypatch) -> Bench:
    """A pool and a target; commands run in a folder of their own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    options = ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN)
    return Bench(pool_runs, tmp_path, options)


@pytest.fixture
def runs(trapped) -> Path:
    return trapped.fresh()


def run(bench: Bench, runs: Path, name: str) -> None:
    needs_target = name not in ("inspect", "doctor")
    plain = bench if needs_target else Bench(bench.base, bench.folder, ())
    ending = plain.run(Command(name, (name, *TYPED[name]), ()), runs, trap)
    assert ending.code == 0 and "TRAPPED" not in ending.printed, ending.printed[-3000:]


def test_every_command_runs_with_traps(trapped, runs):
    assert TYPED.keys() | {"serve"} == COMMANDS.keys()
    for name in TYPED:
        run(trapped, runs, name)


def test_serve_runs_with_traps(trapped, runs):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = Command("serve", ("serve", f"port={port}", "drafter=pool", "learn=on", "learn.train=false"), ())
    process = start(command, trapped.options, runs, trap)
    limit, answer = time.monotonic() + 60, None
    while answer is None and time.monotonic() < limit:
        try:
            request = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0.5}
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=request, timeout=60)
        except httpx.TransportError:
            time.sleep(0.05)
    os.kill(process.child, signal.SIGTERM)
    ending = process.finish()
    assert answer is not None and answer.status_code == 200, ending.printed
    assert "TRAPPED" not in ending.printed and "answers are recorded in " in ending.printed


@pytest.mark.parametrize(
    ("what", "work"),
    {
        "eval": lambda: eval("1 + 1"),
        "pickle.load": lambda: pickle.loads(pickle.dumps(1)),
        "torch.load": lambda: torch.load("nothing"),
        "subprocess.Popen": lambda: subprocess.run(["true"], check=True),
        "os.system": lambda: os.system("true"),
    }.items(),
)
def test_a_trap_springs(tmp_path, what, work):
    def hinder(layer: FileLayer) -> None:
        trap(layer)
        work()

    ending_of = Bench(tmp_path / "base", tmp_path, ())
    (tmp_path / "base").mkdir()
    ending = ending_of.run(Command("doctor", ("doctor",), ()), ending_of.fresh(), hinder)
    assert ending.code == 1 and f"TRAPPED {what}" in ending.printed


def test_a_config_that_names_code_is_refused_with_traps(tmp_path):
    folder = save_tiny_target(tmp_path / "tiny")
    (folder / "modeling.py").write_text("open('ran', 'w')")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoModelForCausalLM": "modeling.Mine"},', 1))
    (tmp_path / "base").mkdir()
    bench = Bench(tmp_path / "base", tmp_path, ("target=hf", f"target.model={folder}"))
    ending = bench.run(
        Command("generate", ("generate", "prompt=a", "max_new_tokens=2", "drafter="), ()), bench.fresh(), trap
    )
    assert "TRAPPED" not in ending.printed and ending.code in (0, 2)
    assert not (Path.cwd() / "ran").exists()
