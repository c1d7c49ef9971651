"""Start a training as one process per device of this machine, and end all of them together.

Each process runs the same command, with the environment variables that torchrun sets.  Imports no torch.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO, NoReturn

from drafterforge.config.checks import require
from drafterforge.config.trainer import TrainerConfig
from drafterforge.errors import shorten

RANK_LOST = 75  # exit code of a process that ends because another one did
USER_ERROR = 2  # as in the command line
LAUNCHED = "DRAFTERFORGE_LAUNCHED"  # set in the processes that `launch` starts
GRACE_S = 10.0  # from the end of a failed process until the others are killed
POLL_S = 0.05


@dataclass(frozen=True)
class Placement:
    """Which process of a training this is."""

    rank: int
    num_ranks: int
    local_rank: int  # on its machine
    local_ranks: int


def placement() -> Placement | None:
    """Of a process that `launch`, torchrun or srun started; None for any other."""
    env = os.environ
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"} <= env.keys():
        return Placement(*(int(env[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))
    num_ranks = int(env.get("SLURM_STEP_NUM_TASKS", 1))  # set by srun only, not for a batch script
    if num_ranks > 1:
        per_node = num_ranks // int(env.get("SLURM_STEP_NUM_NODES", 1))
        return Placement(int(env["SLURM_PROCID"]), num_ranks, int(env["SLURM_LOCALID"]), per_node)
    return None


def is_launched(rank: int | None = None) -> bool:
    """Whether `launch` started this process, as this rank if one is given."""
    return LAUNCHED in os.environ and rank in (None, int(os.environ.get("RANK", 0)))


def local_devices(config: TrainerConfig, device: str, device_map: str = "") -> int:
    """Devices of this machine to train on; 1 in a process that is one of several already.  Says if GPUs are idle.

    device, device_map: of the target; one that is spread over devices is trained with by one process.
    """
    number = config.devices or 1
    if device_map:
        require(
            number == 1,
            f"trainer.devices={number}, but target.device_map={device_map} spreads one target over all devices; "
            "leave one of them out",
        )
        return 1
    if placement() is not None or (config.num_nodes or 1) > 1:
        return 1
    if device == "cpu" or config.devices == 1 or (config.devices and config.accumulate == 1):
        return number
    if device not in ("auto", "cuda"):
        require(
            number == 1, f"trainer.devices={number}, but target.device={device} is one device; type target.device=cuda"
        )
        return 1
    import torch

    from drafterforge.config.progress import say

    gpus = torch.cuda.device_count()
    if config.devices is None:
        number = max(n for n in range(1, max(1, gpus) + 1) if config.accumulate % n == 0)
        if number < gpus:
            accumulate, tokens = config.shared_step(gpus)
            typed = f"trainer.accumulate={accumulate} trainer.tokens_per_batch={tokens}"
            say(f"GPUs: {number} of {gpus} train; `{typed}` would use all")
        return number
    require(
        gpus == 0 or number <= gpus, f"trainer.devices={number}, but {gpus} GPUs are here; type trainer.devices={gpus}"
    )
    return number


def launch(arguments: Sequence[str], num_ranks: int) -> int:
    """Run a command as processes of this machine; return its exit code.

    The first process prints; the others are silent unless one of them fails first.
    """
    with ExitStack() as stack:
        logs = [None, *(stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(1, num_ranks))]
        group = {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1"}
        group |= {"MASTER_PORT": _free_port(), LAUNCHED: 1}
        processes = [_start(arguments, group | {"RANK": rank}, log) for rank, log in enumerate(logs)]
        stack.callback(_kill, processes)
        stack.enter_context(_forwarded_signals(processes))
        failed = _wait(processes)
        if failed is None:
            return 0
        code = processes[failed].returncode
        if code == processes[0].returncode and code > 0 and code != RANK_LOST:  # the first process has said it
            return code
        if text := _last_words(failed, code, logs[failed]):
            print(text, file=sys.stderr)
        return code if code > 0 else USER_ERROR


def end_with_launcher() -> None:
    """If `launch` started this process, end it at once when `launch` ends, even if that was killed."""
    if is_launched():
        end_with_stdin()


def end_with_stdin() -> None:
    """End this process at once when the one that holds the other end of its standard input ends."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(RANK_LOST)

    threading.Thread(target=watch, daemon=True).start()


def exit_at_once(code: int) -> NoReturn:
    """End a process that was one of several, without freeing what C++ holds: gloo's threads can abort that."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start(arguments: Sequence[str], variables: Mapping[str, object], log: IO[str] | None) -> subprocess.Popen:
    env = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, "LOCAL_RANK": variables["RANK"], **variables}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "drafterforge", *arguments],  # -P: no modules of the current folder
        env={name: str(value) for name, value in env.items()},
        stdin=subprocess.PIPE,  # closes when this process ends, see `end_with_launcher`
        stdout=subprocess.DEVNULL if log else None,
        stderr=log,
        start_new_session=True,  # a terminal's Ctrl-C reaches this process only, which forwards it
    )


@contextmanager
def _forwarded_signals(processes: Sequence[subprocess.Popen]) -> Iterator[None]:
    """Send SIGINT and SIGTERM on to the processes; only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen]) -> int | None:
    """The rank whose failure ended the training, or that knows how it failed; None once all have succeeded."""
    failed, deadline = None, float("inf")
    while None in (codes := [process.poll() for process in processes]) and time.monotonic() < deadline:
        causes = [rank for rank, code in enumerate(codes) if code not in (None, 0, RANK_LOST)]
        if failed is None and causes:
            failed, deadline = causes[0], time.monotonic() + GRACE_S
        time.sleep(POLL_S)
    _kill(processes)
    codes = [process.returncode for process in processes]
    causes = [rank for rank, code in enumerate(codes) if code not in (0, RANK_LOST)]
    causes += reversed([rank for rank, code in enumerate(codes) if code == RANK_LOST])  # the first one is silent
    return failed if failed is not None else next(iter(causes), None)


def _kill(processes: Sequence[subprocess.Popen]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def _last_words(rank: int, code: int, log: IO[str] | None) -> str:
    """What a failed process has to say that is not on the terminal yet."""
    text = ""
    if log is not None:  # the first process prints for itself
        log.seek(0)
        text = log.read().rstrip()
    line = text.rpartition("\n")[2]
    if code < 0:
        name, last = signal.Signals(-code).name, f" ({shorten(line)})" if line else ""
        return f"drafterforge: {name} ended process {rank} of the training{last}; type the same command to continue"
    return line if line.startswith("drafterforge: ") else text
