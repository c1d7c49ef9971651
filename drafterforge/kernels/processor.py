"""What kind of processor this machine has."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_features() -> str:
    """Features of the processor, so machines that share a home folder have a library each."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    features = {line for line in lines if line.startswith(("flags", "Features", "model name", "model\t"))}
    return "\n".join(sorted(features))
