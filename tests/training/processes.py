"""A tiny distillation by several processes of this machine, which join through gloo."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from drafterforge.config.trainer import TrainerConfig
from drafterforge.errors import RankLostError
from drafterforge.training import ranks
from drafterforge.training.launch import exit_at_once
from tests.training.runs import Run

LOST, INTERRUPTED = 5, 6  # exit codes of a process that lost another one, and of one that a signal ended


@dataclass(frozen=True)
class Event:
    """What happens to one process at a forward pass of the target: a signal, or an error without one."""

    rank: int
    forward_pass: int
    signal_number: int = 0


class Broken(Exception):
    """An error of one process."""


def happen(event: Event) -> Callable[[], None]:
    """Sends the signal or raises the error."""

    def act() -> None:
        if not event.signal_number:
            raise Broken
        os.kill(os.getpid(), event.signal_number)

    return act


def train_as(rank: int, num_ranks: int, port: int, folder: Path, config: TrainerConfig, event: Event | None) -> None:
    """The work of one process."""
    if not torch.cuda.is_available():
        atexit._clear()  # what the process that forked this one has to do at its end
    torch.set_num_threads(1)
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    run = Run(folder, config)
    try:
        with ranks.joined(config, "cpu"):
            run(*(event.forward_pass, happen(event)) if event and event.rank == rank else ())
    except RankLostError:
        exit_at_once(LOST)
    except KeyboardInterrupt:
        exit_at_once(INTERRUPTED)
    exit_at_once(0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train_together(folder: Path, config: TrainerConfig, event: Event | None = None, num_ranks: int = 2) -> list[int]:
    """Train in a folder by several processes; returns their exit codes."""
    # a forked process imports nothing again, but CUDA does not survive a fork
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    arguments = (num_ranks, free_port(), folder, config, event)
    processes = [context.Process(target=train_as, args=(rank, *arguments)) for rank in range(num_ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    return [process.exitcode for process in processes]
