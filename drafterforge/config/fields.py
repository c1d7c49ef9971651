"""Fields of config classes: every one carries the text that `--help` prints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


def setting(default: Value, help_text: str, *, input: str = "", repr: bool = True) -> Value:
    """A key with its default (lists and dicts are copied for every config) and its meaning.

    input: "path" for a file or folder that has to be there, or a kind of artifact for the name or folder of one.
    """
    metadata = {"help": help_text, "input": input}
    if isinstance(default, list | dict):
        made: Any = field(default_factory=lambda: copy.deepcopy(default), metadata=metadata, repr=repr)
    else:
        made = field(default=default, metadata=metadata, repr=repr)
    return cast("Value", made)


def section(make: Callable[[], Value], help_text: str = "") -> Value:
    """A group of keys, made by its class; without a text it is explained by the docstring of that class."""
    return cast("Value", field(default_factory=make, metadata={"help": help_text}))
