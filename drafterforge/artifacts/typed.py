"""JSON from strangers becomes frozen dataclasses, or one line that names the key."""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from drafterforge.errors import ArtifactError

MAX_BYTES = 16 << 20  # of a JSON file; ours have a few kilobytes
MAX_NUMBER = 2**53  # what JSON readers agree on

T = TypeVar("T")


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """The content of a JSON file; ArtifactError on one that is too large, no JSON, or nested without end."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ArtifactError(f"{path} has {size:,} bytes; no file of its kind has more than {max_bytes:,}")
        return json.loads(path.read_bytes(), parse_constant=_no_number)
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from None
    except RecursionError:
        raise ArtifactError(f"{path} is damaged (it is nested too deeply)") from None
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged (no JSON: {str(error)[:120]})") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def typed(kind: type[T], value: Any, where: str) -> T:
    """`value` as a `kind`: a dataclass, a list, a dict, an optional or a plain type; no key more and none less.

    where: names it in errors, such as `bundle.json: drafters[0]`.
    """
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inner:
            return None
        return typed(next(one for one in inner if one is not type(None)), value, where)
    if origin is list:
        _wanted(isinstance(value, list), where, "a list", value)
        return [typed(inner[0], one, f"{where}[{place}]") for place, one in enumerate(value)]
    if origin is dict:
        _object(value, where)
        return {key: typed(inner[1], one, f"{where}.{key[:40]}") for key, one in value.items()}
    if kind is Any:
        return value
    plain = isinstance(value, kind) and not (kind in (int, float) and isinstance(value, bool))
    if kind is float:
        plain = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        plain = plain and (isinstance(value, float) or abs(value) <= MAX_NUMBER)
    if kind is int:
        plain = plain and abs(value) <= MAX_NUMBER
    _wanted(plain, where, f"of type {kind.__name__}", value)
    return value


def _dataclass(kind: type[T], value: Any, where: str) -> T:
    _object(value, where)
    wanted = {one.name for one in fields(kind)}
    if odd := sorted(wanted ^ value.keys()):
        known = "lacks" if odd[0] in wanted else "has the unknown key"
        raise ArtifactError(f"{where} {known} {odd[0][:60]!r}; wanted {', '.join(sorted(wanted))}")
    hints = typing.get_type_hints(kind)
    return kind(**{name: typed(hints[name], value[name], f"{where}.{name}") for name in wanted})


def _object(value: Any, where: str) -> None:
    _wanted(isinstance(value, dict), where, "an object", value)
    for key in value:  # YAML has others
        if not isinstance(key, str):
            raise ArtifactError(f"{where} has the key {repr(key)[:40]}; write it in quotes")


def _wanted(holds: bool, where: str, what: str, value: Any) -> None:
    if not holds:
        raise ArtifactError(f"{where} is {repr(value)[:60]}; wanted one {what}")
