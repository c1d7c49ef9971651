"""Fields of config classes; each has the text that `--help` prints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


def setting(default: Value, help_text: str, *, input: str = "", repr: bool = True) -> Value:
    """A key with its default value, which is copied if it is a list or dict, and its help text.

    input: "path" for a file or folder that must exist, or a kind of artifact for the name or folder of one;
    "decoders" for a drafter to decode with, which may be a hybrid, `retrieval` or the folder of a small language model.
    """
    metadata = {"help": help_text, "input": input}
    if isinstance(default, list | dict):
        entry: Any = field(default_factory=lambda: copy.deepcopy(default), metadata=metadata, repr=repr)
    else:
        entry = field(default=default, metadata=metadata, repr=repr)
    return cast("Value", entry)


def section(make: Callable[[], Value], help_text: str = "") -> Value:
    """A nested config.  make: its class or factory.  help_text: empty if the docstring of the class says enough."""
    return cast("Value", field(default_factory=make, metadata={"help": help_text}))
