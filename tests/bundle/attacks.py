"""Parts of a bundle to attack, one attack on its weights, and a limit of memory that an attack may not exceed."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

WEIGHTS = "drafters/general/model.safetensors"
CONFIG = "drafters/general/config.json"


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let the process allocate at most two gigabytes more than it has now."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def wrong_hash(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
