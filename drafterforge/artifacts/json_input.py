"""Read untrusted JSON into frozen dataclasses; a mismatch is a one-line error that names the key."""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from drafterforge.errors import ArtifactError, shorten

MAX_BYTES = 16 << 20  # size limit of a JSON file; ours have a few kilobytes
MAX_NUMBER = 2**53  # largest whole number that all JSON readers represent exactly

T = TypeVar("T")


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """The content of a JSON file; ArtifactError if it is too large, not JSON, or nested too deeply."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ArtifactError(f"{path} has {size:,} bytes; a file of its kind has at most {max_bytes:,}")
        return json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from None
    except RecursionError:
        raise ArtifactError(f"{path} is damaged (it is nested too deeply)") from None
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged (not JSON: {str(error)[:120]})") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def parse_as(kind: type[T], value: Any, where: str) -> T:
    """`value` converted to `kind`: a dataclass, list, dict, optional or plain type.  Extra and missing keys are errors.

    where: names the value in errors, such as `bundle.json: drafters[0]`.
    """
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inner:
            return None
        return parse_as(next(option for option in inner if option is not type(None)), value, where)
    if origin is list:
        _require(isinstance(value, list), where, "a list", value)
        return [parse_as(inner[0], entry, f"{where}[{index}]") for index, entry in enumerate(value)]
    if origin is dict:
        _require_object(value, where)
        return {key: parse_as(inner[1], entry, f"{where}.{shorten(key, 40)}") for key, entry in value.items()}
    if kind is Any:
        return value
    matches = isinstance(value, kind) and not (kind in (int, float) and isinstance(value, bool))
    if kind is float:
        matches = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        matches = matches and (isinstance(value, float) or abs(value) <= MAX_NUMBER)
    if kind is int:
        matches = matches and abs(value) <= MAX_NUMBER
    _require(matches, where, f"a value of type {kind.__name__}", value)
    return value


def _dataclass(kind: type[T], value: Any, where: str) -> T:
    _require_object(value, where)
    names = {field.name for field in fields(kind)}
    if odd := sorted(names ^ value.keys()):
        problem = "lacks" if odd[0] in names else "has the unknown key"
        raise ArtifactError(f"{where} {problem} {odd[0][:60]!r}; expected {', '.join(sorted(names))}")
    hints = typing.get_type_hints(kind)
    return kind(**{name: parse_as(hints[name], value[name], f"{where}.{name}") for name in names})


def _require_object(value: Any, where: str) -> None:
    _require(isinstance(value, dict), where, "an object", value)
    for key in value:  # keys of YAML may be numbers or null
        if not isinstance(key, str):
            raise ArtifactError(f"{where} has the key {repr(key)[:40]}; write it in quotes")


def _require(condition: bool, where: str, expected: str, value: Any) -> None:
    if not condition:
        raise ArtifactError(f"{where} is {repr(value)[:60]}, expected {expected}")
