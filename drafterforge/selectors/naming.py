"""Names a user typed, checked against those that exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from inspect import Parameter, signature

from drafterforge.errors import ConfigError, quote, shorten


def known(word: object, names: Iterable[str], what: str) -> str:
    """`word`, which is one of `names`; ConfigError with a suggestion if it is not."""
    names = list(names)
    if word in names:
        return str(word)
    close = get_close_matches(shorten(word), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"no {what} {quote(word)}{hint} (have: {', '.join(names) or 'none'})")


def pool_names(drafters: Sequence[str]) -> list[str]:
    """The names of a pool: at least one, all different."""
    names = [drafters] if isinstance(drafters, str) else list(drafters)
    if not names:
        raise ConfigError("a selector needs at least one drafter, got an empty pool")
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise ConfigError(f"drafter {quote(twice)} is in the pool twice; give every drafter its own name")
    return names


def keyword_options(kind: type, stop: type) -> list[str]:
    """Keyword arguments of the constructors of `kind` and of its bases before `stop`."""
    found: dict[str, None] = {}
    for base in kind.__mro__[: kind.__mro__.index(stop)]:
        if "__init__" in vars(base):
            parameters = signature(vars(base)["__init__"]).parameters.values()
            found |= dict.fromkeys(p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY)
    return list(found)
