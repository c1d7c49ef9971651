"""Bound how long torch's OpenMP threads spin while they wait for each other.

By default they spin for milliseconds. If other programs use the same cores, the spinning threads take the time that the
thread they wait for needs. OpenMP reads its settings when torch loads it, so this module has to be imported first.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

NAME, SPIN_COUNT = "GOMP_SPINCOUNT", "10000"  # processor pauses, 0.1 to 0.5 ms; see bench_decode.py --busy
SETTINGS = ("OMP_WAIT_POLICY", NAME)  # environment variables by which a user overrides it


@dataclass(frozen=True)
class WaitPolicy:
    """How OpenMP's threads wait."""

    setting: str  # as typed in a shell; empty: OpenMP's default
    too_late: bool = False  # OpenMP was loaded before this module

    def describe(self) -> str:
        """The line of `drafterforge doctor`."""
        if not self.too_late:
            return self.setting
        return (
            "OpenMP's default, which is slow beside other programs, as torch was loaded before drafterforge; "
            f"import drafterforge first, or set {NAME}={SPIN_COUNT} in the environment"
        )


def limit_spinning(environ: MutableMapping[str, str], openmp_is_loaded: bool) -> WaitPolicy:
    """Set the spin limit in `environ`, unless the user has set one there or OpenMP is already loaded."""
    setting = user_settings(environ)
    if setting:
        return WaitPolicy(f"{setting} from the environment")
    if openmp_is_loaded:
        return WaitPolicy("", too_late=True)
    environ[NAME] = SPIN_COUNT
    return WaitPolicy(f"{NAME}={SPIN_COUNT}")


def warn_if_too_late() -> None:
    """Warn once if torch was imported first, so that decoding on a CPU loses up to a quarter of its speed."""
    if WAIT_POLICY.too_late:
        warnings.warn(
            f"torch was imported before drafterforge, which makes decoding on a CPU up to a quarter slower; import "
            f"drafterforge first, or set {NAME}={SPIN_COUNT} in the environment",
            RuntimeWarning,
            stacklevel=3,
        )


def user_settings(environ: Mapping[str, str]) -> str:
    """The user's own OpenMP wait settings, as typed in a shell."""
    return " ".join(f"{name}={environ[name]}" for name in SETTINGS if environ.get(name))


def openmp_is_loaded() -> bool:
    """Whether this process has loaded GNU's OpenMP library, through torch or otherwise."""
    try:
        return b"/libgomp.so" in Path("/proc/self/maps").read_bytes()
    except OSError:
        return "torch" in sys.modules


WAIT_POLICY = limit_spinning(os.environ, openmp_is_loaded())  # takes effect on import
