"""Modules of a package that is not installed, with stubs in them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def modules_with(contents: Mapping[str, Mapping[str, Any]]) -> dict[str, ModuleType]:
    """The modules of these names and the packages above them.  contents: what each module defines."""
    stubs: dict[str, ModuleType] = {}
    for name, values in contents.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            package = ".".join(parts[:end])
            stubs.setdefault(package, ModuleType(package))
            if end > 1:
                setattr(stubs[".".join(parts[: end - 1])], parts[end - 1], stubs[package])
        vars(stubs[name]).update(values)
    return stubs
