"""Run a command in a forked process that something ends or hinders, and compare what it leaves.

A fault is one of: SIGKILL, SIGINT or SIGTERM at a random moment; SIGKILL before a random file operation; a power cut
there, after which files that were written and not synced hold zeros; a file system that refuses to write; a limit on
file sizes; a clock that jumps.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch

from drafterforge.artifacts.folder import is_complete
from drafterforge.artifacts.manifest import MANIFEST
from drafterforge.assembly.bundles import check_bundle
from drafterforge.bundle.record import BUNDLE
from drafterforge.cli import main
from drafterforge.errors import DrafterforgeError

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"}
LIMIT_S = 300.0  # longest time of a command
PIPE_BYTES = 1 << 20  # more than a command prints
VARIES = ("logs", MANIFEST)  # parts of an artifact that hold times


@dataclass(frozen=True)
class Command:
    """A command of which every run leaves the same artifacts."""

    name: str
    arguments: tuple[str, ...]
    makes: tuple[str, ...]  # artifacts, relative to the target's runs


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code, or minus its signal, and what it printed."""

    code: int
    printed: str
    events: int  # changes of files until then
    seconds: float

    @property
    def is_one_line(self) -> bool:
        """Whether it ended well, or with one line for the user."""
        return "Traceback" not in self.printed


class FileLayer:
    """Counts changes of files below a folder, acts before one of them, and knows which files are synced."""

    def __init__(self, folder: Path, events: mmap.mmap) -> None:
        self.folder, self.events = f"{os.path.realpath(folder)}/", events
        self.act_at, self.act = -1, lambda: None
        self.synced: dict[int, tuple[int, int]] = {}  # size and time of a change of each synced file
        self.before = {path: _version(os.stat(path)) for path in _files(folder)}
        self.count = 0
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            stat = os.fstat(descriptor)
            self.synced[stat.st_ino] = _version(stat)

        os.fsync = fsync
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            paths = [path] if changes else []
        else:
            paths = list(arguments) if event in CHANGES else []
        names = [os.fsdecode(path) for path in paths if isinstance(path, str | bytes | os.PathLike)]
        if not any(os.path.abspath(name).startswith(self.folder) for name in names):
            return
        self.count += 1
        self.events[:8] = self.count.to_bytes(8, "little")
        if 0 <= self.act_at <= self.count:
            self.act()

    def cut_power(self) -> NoReturn:
        """Lose the content of files that are not synced, and end the process."""
        self.act_at = -1
        for path in _files(Path(self.folder)):
            stat = os.stat(path)
            version = _version(stat)
            if version not in (self.synced.get(stat.st_ino), self.before.get(path)):
                with open(path, "r+b") as file:
                    file.write(bytes(stat.st_size))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def _version(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _files(folder: Path) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.is_file()]


Hinder = Callable[[FileLayer], None]  # called in the child before the command


@dataclass(frozen=True)
class Process:
    """A forked process that runs a command."""

    child: int  # its id
    events: mmap.mmap  # where it counts changes of files
    printed: int  # file descriptor of what it prints: a pipe, which no limit on files hinders
    began: float = field(default_factory=time.monotonic)

    def finish(self) -> Ending:
        """Wait for its end."""
        while True:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > self.began + LIMIT_S:
                os.kill(self.child, signal.SIGKILL)
            time.sleep(0.005)
        seconds, code = time.monotonic() - self.began, os.waitstatus_to_exitcode(status)
        os.set_blocking(self.printed, False)  # processes that it has started may hold the other end
        with open(self.printed, "rb", buffering=0) as pipe:
            printed = (pipe.readall() or b"").decode(errors="replace")
        return Ending(code, printed, int.from_bytes(self.events[:], "little"), seconds)


def start(command: Command, options: Sequence[str], runs: Path, hinder: Hinder | None) -> Process:
    """Fork a process that runs the command."""
    events, ends = mmap.mmap(-1, 8), {signal.SIGINT, signal.SIGTERM}
    printed, printing = os.pipe()
    fcntl.fcntl(printing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # until the child is in its `try`: it must not go on as its parent
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
        os.close(printing)
        return Process(child, events, printed)
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(printing, 1)
        os.dup2(printing, 2)
        os.close(printing)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (until the process ends)
        torch.set_num_threads(1)  # torch's thread pool is made again, before several threads ask for it
        layer = FileLayer(runs, events)
        if hinder is not None:
            hinder(layer)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
        except KeyboardInterrupt:  # the signal came before the command began
            os._exit(130)
        code = main([*command.arguments, *options, f"runs_dir={runs}"])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(code)


@dataclass
class Bench:
    """A folder of runs in which a command starts, and what uninterrupted runs of it leave."""

    base: Path  # runs to copy
    folder: Path  # of copies
    options: tuple[str, ...]  # of every command

    def fresh(self) -> Path:
        """A copy of the runs."""
        runs = self.folder / "runs"
        shutil.rmtree(runs, ignore_errors=True)
        return Path(shutil.copytree(self.base, runs, copy_function=shutil.copy2))

    def run(
        self, command: Command, runs: Path, hinder: Hinder | None = None, after_s: float = -1, number: int = 0
    ) -> Ending:
        """Run the command; after `after_s` seconds it gets the signal `number`."""
        process = start(command, self.options, runs, hinder)
        if after_s >= 0:
            while (
                time.monotonic() - process.began < after_s
                and os.waitid(os.P_PID, process.child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                time.sleep(0.002)
            os.kill(process.child, number)
        return process.finish()

    def run_twice_at_once(self, command: Command, runs: Path) -> list[Ending]:
        """Two processes run the command at the same time."""
        processes = [start(command, self.options, runs, None) for _ in range(2)]
        return [process.finish() for process in processes]


def content(command: Command, runs: Path) -> dict[str, str]:
    """The hashes of the files that a command has made, but for logs and manifests, which hold times."""
    hashes = {}
    for name in command.makes:
        path = next(runs.glob(f"*/{name}"))
        for file in [path] if path.is_file() else _files(path):
            if not {*file.relative_to(path).parts} & {*VARIES}:
                hashes[f"{name}/{file.relative_to(path)}"] = _digest(file)
    return hashes


def _digest(file: Path) -> str:
    """The hash of a file; safetensors writes the keys of its metadata in any order."""
    data = file.read_bytes()
    if file.suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True)
        data = header.encode() + data[8 + size :]
    return hashlib.sha256(data).hexdigest()


def half_artifacts(runs: Path) -> list[str]:
    """Artifacts with a final name that are not complete and undamaged."""
    return [str(path.relative_to(runs)) for path in runs.glob("*/*/[!.]*") if path.is_dir() and not _is_whole(path)]


def _is_whole(path: Path) -> bool:
    if (path / BUNDLE).exists():
        try:
            check_bundle(path)
        except DrafterforgeError:
            return False
        return True
    return path.parent.name in ("exports", "traffic") or is_complete(path, verify=True)


def leftovers(runs: Path) -> list[str]:
    """Hidden files and folders, of which a finished command leaves none."""
    return sorted(str(path.relative_to(runs)) for path in runs.rglob(".*"))


def read_only(layer: FileLayer) -> None:
    """No file can be changed."""

    def refuse() -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), layer.folder)

    layer.act_at, layer.act = 0, refuse


def full_disk(chance: random.Random, events: int) -> Hinder:
    """The disk is full from a random change of a file on."""
    at = chance.randint(1, max(1, events))

    def hinder(layer: FileLayer) -> None:
        def refuse() -> NoReturn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), layer.folder)

        layer.act_at, layer.act = at, refuse

    return hinder


def file_limit(chance: random.Random) -> Hinder:
    """Files have at most some kilobytes."""
    size = chance.choice((0, 100, 1 << 10, 20 << 10, 200 << 10))

    def hinder(layer: FileLayer) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    return hinder


def at_event(chance: random.Random, events: int, power: bool) -> Hinder:
    """The process is killed, or the power is cut, before a random change of a file."""
    at = chance.randint(1, max(1, events))

    def hinder(layer: FileLayer) -> None:
        layer.act_at = at
        layer.act = layer.cut_power if power else lambda: os.kill(os.getpid(), signal.SIGKILL)

    return hinder


def jumping_clock(chance: random.Random) -> Hinder:
    """The clock jumps by up to a day, in both directions, whenever it is read."""

    def hinder(layer: FileLayer) -> None:
        real = time.time
        time.time = lambda: real() + chance.uniform(-86_400, 86_400)

    return hinder
