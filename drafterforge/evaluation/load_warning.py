"""A warning of commands that measure time: other programs use the cores."""

from __future__ import annotations

import os
import time

import torch

from drafterforge.config.progress import say
from drafterforge.evaluation.machine_load import MachineLoad

SAMPLE_S = 0.2
LEAST_CORES = 0.5  # what a quiet system uses by itself is less


def load_warning(other_cores: float, threads: int, cores: int) -> str | None:
    """One line if other programs leave fewer cores than our threads need."""
    if other_cores < LEAST_CORES or other_cores + threads <= cores:
        return None
    return (
        f"warning: other programs use {min(other_cores, cores):.1f} of {cores} cores; "
        "times measured now are too long and vary"
    )


def current_warning() -> str | None:
    """The warning for this moment; takes 0.2 seconds."""
    load = MachineLoad()
    time.sleep(SAMPLE_S)
    other_cores = load.other_cores()
    if other_cores is None:  # the load average counts this process too
        other_cores = os.getloadavg()[0] - 1 if hasattr(os, "getloadavg") else 0.0
    return load_warning(other_cores, torch.get_num_threads(), os.cpu_count() or 1)


def warn_if_busy() -> None:
    """Print the warning for this moment, if there is one."""
    if line := current_warning():
        say(line)
