"""Run a reader on many malformed inputs in a process of its own, and count what must not happen.

A reader may accept an input or refuse it with a `DrafterforgeError` in one line.  Everything else is a failure: another
exception, more than `MAX_S` seconds, more memory than twice the input beside a fixed allowance, a file written outside
the reader's folder, a program or a connection, or the end of the process.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from drafterforge.errors import DrafterforgeError
from tests.bundle.attacks import limited_memory

MAX_S = 5.0  # longest time for an input
STALL_S = 15.0  # without an end of an input, its process is killed
MEMORY_FACTOR = 2.0  # of the input's size
ALLOWANCE = 32 << 20  # bytes of memory beside that, for libraries that are loaded and caches
MAX_LINE = 2000  # characters of an error
MAX_SEEDS = 16  # valid inputs that are opened first
KINDS = ("traceback", "hang", "memory", "write", "program", "crash", "message")
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "ctypes.dlopen"}


@dataclass(frozen=True)
class Reader:
    """What opens an input, and how inputs are made."""

    name: str
    open: Callable[[bytes], None]
    folder: Path  # where the reader may write
    seeds: Sequence[bytes]  # valid inputs
    mutate: Callable[[bytes, random.Random, Sequence[bytes]], bytes]
    structured: st.SearchStrategy[bytes] | None = None  # every second input, if there is one
    any_seed: bool = False  # whether seeds may be refused, too
    connects: bool = False  # whether it talks to a server of its own


@dataclass
class Count:
    """What happened to the inputs of a reader."""

    name: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    most_memory: int = 0  # bytes beyond the input's size, twice
    failures: Counter[str] = field(default_factory=Counter)  # by kind
    examples: dict[str, str] = field(default_factory=dict)  # where, by the failure's short text

    @property
    def ok(self) -> bool:
        return not self.failures

    def fail(self, kind: str, text: str, data: bytes, folder: Path) -> None:
        """Count a failure, and keep the first input of each text."""
        self.failures[kind] += 1
        if text not in self.examples and len(self.examples) < 40:
            path = folder / f"{self.name}-{len(self.examples)}"
            path.write_bytes(data)
            self.examples[text] = str(path)

    def as_row(self) -> dict[str, Any]:
        """The row of a report."""
        row = {"reader": self.name, "inputs": self.inputs, "accepted": self.accepted, "refused": self.refused}
        row |= {"slowest_s": round(self.slowest_s, 3), "memory_mb": round(self.most_memory / 2**20, 1)}
        return row | {kind: self.failures[kind] for kind in KINDS}


class HangError(BaseException):
    """An input took too long."""


class Watch:
    """Audits what this process does while an input is read; there is one in a process, because hooks stay."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.events: list[tuple[str, str]] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple) -> None:
        if self.folder is None:
            return
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and isinstance(path, str | bytes | os.PathLike):
                self._check(event, path)
        elif event in WRITES:
            folders = [part for part in arguments if type(part) is int and part >= 0]  # of relative paths
            paths = [part for part in arguments if isinstance(part, str | bytes | os.PathLike)]
            inside = f"/proc/self/fd/{folders[-1]}" if folders and event in ("os.remove", "os.rmdir") else ""
            self._check(event, *(os.path.join(inside, os.fsdecode(path)) for path in paths))
        elif event in PROGRAMS or event == "socket.connect":
            self.events.append(("program", f"{event} {str(arguments)[:80]}"))

    def _check(self, event: str, *paths: Any) -> None:
        for path in paths:
            absolute = os.path.realpath(os.fsdecode(path))
            if absolute != os.devnull and not f"{absolute}/".startswith(f"{self.folder}/"):
                self.events.append(("write", f"{event} {absolute}"))

    @contextmanager
    def within(self, folder: Path) -> Iterator[list[tuple[str, str]]]:
        """Yields what is done outside the folder until the block ends."""
        self.events = []
        self.folder = os.path.realpath(folder)
        try:
            yield self.events
        finally:
            self.folder = None


def fuzz(reader: Reader, inputs: int, seed: int, failures: Path) -> Count:
    """Read so many inputs in child processes; files of failing inputs go to the folder `failures`."""
    failures.mkdir(parents=True, exist_ok=True)
    count, heartbeat = Count(reader.name), mmap.mmap(-1, 16)
    begin = 0
    while begin < inputs:
        result = failures / f".{reader.name}.json"
        result.unlink(missing_ok=True)
        current = failures / f".{reader.name}.input"
        child = os.fork()
        if child == 0:
            _work(reader, begin, inputs, seed, failures, heartbeat, result, current)
        status = _wait(child, heartbeat)
        part = json.loads(result.read_text()) if result.exists() else {}
        _add(count, part)
        begin = int.from_bytes(heartbeat[:8], "little") + 1
        if status != 0:
            kind = "hang" if status == -signal.SIGKILL else "crash"
            count.inputs += 1
            data = current.read_bytes() if current.exists() else b""
            count.fail(kind, f"ended by signal {-status}", data, failures)
        current.unlink(missing_ok=True)
        result.unlink(missing_ok=True)
    return count


def _wait(child: int, heartbeat: mmap.mmap) -> int:
    """The exit code of a child, or minus its signal; kills one whose heartbeat stops."""
    seen, since = b"", time.monotonic()
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if heartbeat[:] != seen:
            seen, since = heartbeat[:], time.monotonic()
        elif time.monotonic() - since > STALL_S:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.02)


def _add(count: Count, part: dict[str, Any]) -> None:
    for name in ("inputs", "accepted", "refused"):
        setattr(count, name, getattr(count, name) + part.get(name, 0))
    count.slowest_s = max(count.slowest_s, part.get("slowest_s", 0.0))
    count.most_memory = max(count.most_memory, part.get("most_memory", 0))
    count.failures.update(part.get("failures", {}))
    count.examples.update(part.get("examples", {}))


def _work(
    reader: Reader, begin: int, end: int, seed: int, failures: Path, heartbeat: mmap.mmap, result: Path, current: Path
) -> NoReturn:
    """Read the inputs from `begin` on, write the counts after every hundred, and end the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _raise_hang)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    count, watch, code, parent = Count(reader.name), Watch(), 0, os.getppid()
    number = begin

    def read(data: bytes) -> None:
        nonlocal number
        if os.getppid() != parent:
            os._exit(1)
        if number >= end:
            return
        heartbeat[:8] = number.to_bytes(8, "little")
        current.write_bytes(data)
        _read(reader, data, count, watch, failures)
        number += 1
        if number % 100 == 0:
            _save(count, result)

    try:
        with limited_memory():
            if begin == 0:
                for data in reader.seeds[:MAX_SEEDS]:  # also loads what the reader imports
                    heartbeat[8:] = bytes(random.randbytes(8))
                    with suppress(DrafterforgeError if reader.any_seed else ()):
                        reader.open(data)
            structured = (end - begin) // 2 if reader.structured is not None else 0
            if structured:
                _structured(reader, structured, seed + begin, read)
            while number < end:
                chance = random.Random(f"{seed} {reader.name} {number}")
                read(reader.mutate(chance.choice(reader.seeds), chance, reader.seeds))
        heartbeat[:8] = (end - 1).to_bytes(8, "little")
    except BaseException:
        code = 3
        count.fail("traceback", f"the harness: {traceback.format_exc()[-1500:]}", b"", failures)
        heartbeat[:8] = (end - 1).to_bytes(8, "little")
        code = 0
    finally:
        _save(count, result)
        os._exit(code)


def _structured(reader: Reader, inputs: int, seed: int, read: Callable[[bytes], None]) -> None:
    @hypothesis_seed(seed)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(reader.structured)
    def run(data: bytes) -> None:
        read(data)

    run()


def _save(count: Count, result: Path) -> None:
    result.write_text(json.dumps(vars(count)))


def _read(reader: Reader, data: bytes, count: Count, watch: Watch, failures: Path) -> None:
    """Read one input and count what happens."""
    count.inputs += 1
    before, began = _reset_peak(), time.perf_counter()
    kind = text = ""
    with watch.within(reader.folder) as events:
        signal.setitimer(signal.ITIMER_REAL, MAX_S)
        try:
            reader.open(data)
            count.accepted += 1
        except DrafterforgeError as error:
            count.refused += 1
            if "\n" in str(error) or len(str(error)) > MAX_LINE:
                kind, text = "message", str(error)[:200]
        except HangError:
            kind, text = "hang", "".join(traceback.format_exc()[-600:])
        except MemoryError:
            kind, text = "memory", traceback.format_exc()[-600:]
        except Exception as error:
            kind, text = "traceback", _location(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    seconds, memory = time.perf_counter() - began, _peak() - before
    count.slowest_s = max(count.slowest_s, seconds)
    count.most_memory = max(count.most_memory, memory - int(MEMORY_FACTOR * len(data)))
    if kind:
        count.fail(kind, text, data, failures)
    for event, what in events:
        if reader.connects and what.startswith("socket.connect"):
            continue
        count.fail(event, what, data, failures)
    if memory > MEMORY_FACTOR * len(data) + ALLOWANCE:
        count.fail("memory", f"{memory >> 20} MiB for {len(data):,} bytes", data, failures)


def _location(error: Exception) -> str:
    """Where an exception was raised, in our code and below it, with its type."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/drafterforge/" in frame.filename or "/pipelines/" in frame.filename]
    places = [*ours[-2:], *frames[-1:]]
    return f"{type(error).__name__}: {str(error)[:160]} at " + ", ".join(
        f"{Path(frame.filename).name}:{frame.lineno}" for frame in places
    )


def _raise_hang(number: int, frame: FrameType | None) -> None:
    raise HangError


def _reset_peak() -> int:
    """Begin to measure the most memory of this process; returns what it has now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    return 0
