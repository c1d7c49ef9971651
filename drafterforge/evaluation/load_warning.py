"""Warns commands that measure time when other programs use the processor cores."""

from __future__ import annotations

import os
import time

import torch

from drafterforge.config.progress import say
from drafterforge.evaluation.machine_load import MachineLoad

SAMPLE_S = 0.2
MIN_CORES = 0.5  # an idle system uses fewer


def load_warning(other_cores: float, threads: int, cores: int) -> str | None:
    """A warning if other programs leave fewer cores than this process has threads."""
    if other_cores < MIN_CORES or other_cores + threads <= cores:
        return None
    return (
        f"warning: other programs use {min(other_cores, cores):.1f} of {cores} cores; "
        "timings are slower than on an idle machine, and vary"
    )


def current_warning() -> str | None:
    """The warning for the present load, sampled for 0.2 seconds."""
    load = MachineLoad()
    time.sleep(SAMPLE_S)
    other_cores = load.other_cores()
    if other_cores is None:  # the load average counts this process too
        other_cores = os.getloadavg()[0] - 1 if hasattr(os, "getloadavg") else 0.0
    return load_warning(other_cores, torch.get_num_threads(), os.cpu_count() or 1)


def warn_if_busy() -> None:
    if line := current_warning():
        say(line)
