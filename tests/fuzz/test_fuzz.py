"""Malformed files and requests are refused in one line: no traceback, hang, crash, or write outside the folder."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from drafterforge.errors import ArtifactError
from tests.fuzz.harness import Reader, fuzz
from tests.fuzz.readers import READERS

INPUTS = 60  # of each reader


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_no_malformed_input_fails(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    count = fuzz(READERS[name](tmp_path), INPUTS, seed=1, failures=tmp_path / "failures")
    assert count.ok, count.examples
    assert count.inputs >= INPUTS and count.refused > 0


GROWN: list[mmap.mmap] = []  # not freed


def fail(data: bytes) -> None:
    raise ValueError("a bug")


def hang(data: bytes) -> None:
    time.sleep(60)


def grow(data: bytes) -> None:
    GROWN.append(memory := mmap.mmap(-1, 100 << 20))  # not memory that this process has freed
    memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)


def escape(data: bytes) -> None:
    with suppress(OSError):
        open("/proc/self/comm", "w").close()


def start(data: bytes) -> None:
    subprocess.run(["true"], check=True)


def end(data: bytes) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def ramble(data: bytes) -> None:
    raise ArtifactError("two\nlines")


@pytest.mark.parametrize(
    ("kind", "work"),
    {
        "traceback": fail,
        "hang": hang,
        "memory": grow,
        "write": escape,
        "program": start,
        "crash": end,
        "message": ramble,
    }.items(),
)
def test_the_harness_counts_every_kind_of_failure(tmp_path, monkeypatch, kind, work: Callable[[bytes], None]):
    if kind == "hang":
        monkeypatch.setattr("tests.fuzz.harness.MAX_S", 0.3)

    def mutate(data: bytes, chance: random.Random, seeds: object) -> bytes:
        return b"y"

    def read(data: bytes) -> None:
        if data == b"y":
            work(data)

    count = fuzz(Reader("bad", read, tmp_path, [b"x"], mutate), 2, seed=0, failures=tmp_path / "failures")
    assert count.failures[kind] == 2 and count.inputs == 2, (count.failures, count.examples)
    assert (tmp_path / "failures" / "bad-0").read_bytes() == b"y"
