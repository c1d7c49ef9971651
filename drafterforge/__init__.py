"""Distil, schedule and serve domain-expert drafters.

`load` opens a target with its best drafter; `open` opens a bundle.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import drafterforge.openmp  # noqa: F401 - must run before torch loads OpenMP
from drafterforge.errors import DrafterforgeError

if TYPE_CHECKING:
    from drafterforge.assembly.load import load, open

__version__ = "0.1.0"
__all__ = ["DrafterforgeError", "load", "open"]


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `import drafterforge` does not import torch.
    if name in ("load", "open"):
        return getattr(import_module("drafterforge.assembly.load"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
