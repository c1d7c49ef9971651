"""How OpenMP's threads wait for each other in torch: they spin briefly, then sleep.

The OpenMP library of torch spins for milliseconds by default.  Beside other programs its threads then burn the time in
which the thread they wait for could run.  It reads its settings when it is loaded, so that they must be set earlier.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

NAME, SPIN_COUNT = "GOMP_SPINCOUNT", "10000"  # pauses of the processor, 0.1 to 0.5 ms; see bench_decode.py --busy
SETTINGS = ("OMP_WAIT_POLICY", NAME)  # by which a user chooses otherwise


@dataclass(frozen=True)
class Waiting:
    """How threads wait, and who has decided it."""

    setting: str  # as typed in a shell; empty: OpenMP's default
    too_late: bool = False  # OpenMP was loaded before this package

    def describe(self) -> str:
        """A line for `doctor`."""
        if not self.too_late:
            return self.setting
        return (
            "OpenMP's default: torch was loaded before drafterforge, and slows down beside other programs; "
            f"import drafterforge first, or set {NAME}={SPIN_COUNT} in the environment"
        )


def limit_spinning(environ: MutableMapping[str, str], openmp_is_loaded: bool) -> Waiting:
    """Bound the spinning of OpenMP's threads, unless the environment decides it or OpenMP is loaded."""
    setting = settings_in(environ)
    if setting:
        return Waiting(f"{setting} from the environment")
    if openmp_is_loaded:
        return Waiting("", too_late=True)
    environ[NAME] = SPIN_COUNT
    return Waiting(f"{NAME}={SPIN_COUNT}")


def settings_in(environ: Mapping[str, str]) -> str:
    """The settings of waiting that are there, as typed in a shell."""
    return " ".join(f"{name}={environ[name]}" for name in SETTINGS if environ.get(name))


def openmp_is_loaded() -> bool:
    """Whether this process has loaded GNU's OpenMP library, with torch or without it."""
    try:
        return "/libgomp.so" in Path("/proc/self/maps").read_text()
    except OSError:
        return "torch" in sys.modules


WAITING = limit_spinning(os.environ, openmp_is_loaded())  # importing this module decides
