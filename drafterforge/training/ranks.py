"""The processes of a training on several devices: join them, and let the first one go ahead.

Without `joined`, everything here is that of a single process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from lightning.pytorch.plugins.environments import ClusterEnvironment, SLURMEnvironment
from torch import distributed

from drafterforge.artifacts.run import ArtifactRun
from drafterforge.config.commands import PrepareDataConfig
from drafterforge.config.progress import console
from drafterforge.config.trainer import TrainerConfig
from drafterforge.errors import ConfigError, RankLostError
from drafterforge.training.launch import Placement, placement

Config = TypeVar("Config", bound=PrepareDataConfig)
PATIENCE = timedelta(days=30)  # how long the others wait while the first process answers prompts
LOST = re.compile("gloo|nccl|connection (closed|reset|refused)|broken pipe|recvvalue failed", re.IGNORECASE)


def is_joined() -> bool:
    """Whether this process trains together with others."""
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    """Number of this process; the first one writes."""
    return distributed.get_rank() if is_joined() else 0


def num_ranks() -> int:
    """Number of processes that train together."""
    return distributed.get_world_size() if is_joined() else 1


def largest(number: int) -> int:
    """The largest of all ranks' numbers; waits for them, but not for the device."""
    if not is_joined():
        return number
    numbers = torch.tensor(number)  # on the host, where gloo reduces it
    distributed.all_reduce(numbers, distributed.ReduceOp.MAX)
    return int(numbers)


@contextmanager
def first_rank_first() -> Iterator[None]:
    """The first process runs the block while the others wait; then they do."""
    if rank() > 0:
        largest(0)
    yield
    if rank() == 0:
        largest(0)


def reading(cfg: Config) -> Config:
    """The configuration by which this process makes an artifact, or, if it is not the first, opens it."""
    return cfg if rank() == 0 else replace(cfg, overwrite=False)


def staging(run: ArtifactRun) -> Path:
    """The staging folder, which the first process locks."""
    with first_rank_first():
        if rank() == 0:
            return run.stage()
    if not run.staging_dir.is_dir():
        raise ConfigError(
            f"{run.staging_dir} is only on the first machine; type runs_dir= with a folder that all share"
        )
    return run.staging_dir


@contextmanager
def joined(config: TrainerConfig, device: str) -> Iterator[None]:
    """Join the processes that this one was started with, if any; only the first one shows messages.

    device: of the target, as the user typed it.
    Raises `RankLostError` if another process ends before the block does.
    """
    position = placement()
    check_placement(config, position)
    if position is None:
        yield
        return
    _set_environment(position)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(position.local_rank % torch.cuda.device_count())
    console.quiet = position.rank > 0
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=PATIENCE)
        yield
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        reason = str(error).splitlines()[0]
        raise RankLostError(f"another process of this training ended; its message says why ({reason})") from error
    finally:
        console.quiet = False
    leave()


def leave() -> None:
    """End the work of several processes, once all have come here."""
    if is_joined():
        largest(0)
        distributed.destroy_process_group()


def check_placement(config: TrainerConfig, position: Placement | None) -> None:
    """Refuse settings that differ from how this process was started."""
    if position is None:
        for key in ("devices", "num_nodes"):
            if (number := getattr(config, key) or 1) > 1:
                raise ConfigError(
                    f"trainer.{key}={number} needs a process per device; start them with torchrun or srun, or leave "
                    f"trainer.{key}= out"
                )
        return
    started = {"devices": position.local_ranks, "num_nodes": position.num_ranks // position.local_ranks}
    for key, number in started.items():
        if (getattr(config, key) or number) != number:
            raise ConfigError(
                f"trainer.{key}={getattr(config, key)}, but the processes were started for {number}; "
                f"type trainer.{key}={number}"
            )
    config.require_shares(position.num_ranks)


def _set_environment(position: Placement) -> None:
    """Of a process that srun started, the variables that torchrun would have set."""
    if "RANK" in os.environ:
        return
    slurm = SLURMEnvironment(auto_requeue=False)
    variables = {
        "RANK": position.rank,
        "WORLD_SIZE": position.num_ranks,
        "LOCAL_RANK": position.local_rank,
        "LOCAL_WORLD_SIZE": position.local_ranks,
        "MASTER_ADDR": slurm.main_address,
        "MASTER_PORT": slurm.main_port,
    }
    os.environ.update({name: str(value) for name, value in variables.items()})


class JoinedEnvironment(ClusterEnvironment):
    """Tells lightning of the processes that `joined` has joined."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        return is_joined()

    def world_size(self) -> int:
        return num_ranks()

    def set_world_size(self, size: int) -> None:
        """Has no effect."""

    def global_rank(self) -> int:
        return rank()

    def set_global_rank(self, rank: int) -> None:
        """Has no effect."""

    def local_rank(self) -> int:
        return int(os.environ["LOCAL_RANK"])

    def node_rank(self) -> int:
        return rank() // int(os.environ["LOCAL_WORLD_SIZE"])
