"""Distil, schedule and serve domain-expert EAGLE-3 drafters."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def open(path: str, **options: Any) -> Any:
    """The engine of a bundle: a folder, a `.tar` of one, or a hub id; see `drafterforge.assembly.bundles`."""
    # Late: the package brings no torch.
    return import_module("drafterforge.assembly.bundles").open_bundle(path, **options)
