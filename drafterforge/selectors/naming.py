"""Checks of names that users type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from inspect import Parameter, signature

from drafterforge.errors import ConfigError, quote, shorten


def require_name(word: object, names: Iterable[str], what: str) -> str:
    """Returns `word` if it is one of `names`; else ConfigError with a suggestion."""
    names = list(names)
    if word in names:
        return str(word)
    close = get_close_matches(shorten(word), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"no {what} {quote(word)}{hint} (have: {', '.join(names) or 'none'})")


def pool_names(drafters: Sequence[str]) -> list[str]:
    """The names of a pool's drafters; ConfigError if there is none, or one twice."""
    names = [drafters] if isinstance(drafters, str) else list(drafters)
    if not names:
        raise ConfigError("a selector needs at least one drafter, got an empty pool")
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise ConfigError(f"drafter {quote(twice)} is in the pool twice; give every drafter its own name")
    return names


def keyword_options(kind: type, stop: type) -> list[str]:
    """Keyword arguments of the constructors of `kind` and of its bases before `stop`."""
    options: dict[str, None] = {}
    for base in kind.__mro__[: kind.__mro__.index(stop)]:
        if "__init__" in vars(base):
            parameters = signature(vars(base)["__init__"]).parameters.values()
            options |= dict.fromkeys(p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY)
    return list(options)
