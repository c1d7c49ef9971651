"""Distil, schedule and serve domain-expert drafters.

`load` gives an engine of a target with its best drafter, `open` one of a bundle.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import drafterforge.waiting  # noqa: F401 - first: it sets how OpenMP waits, before torch loads it
from drafterforge.errors import DrafterforgeError

if TYPE_CHECKING:
    from drafterforge.assembly.load import load, open

__version__ = "0.1.0"
__all__ = ["DrafterforgeError", "load", "open"]


def __getattr__(name: str) -> Any:
    # Late: the package itself brings no torch.
    if name in ("load", "open"):
        return getattr(import_module("drafterforge.assembly.load"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
