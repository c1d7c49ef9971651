"""Names that users type, and names under which results are printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from drafterforge.errors import ConfigError, quote, shorten

OURS = ("hedgespec", "hedgespec-prompt", "normalhedge_discounted", "static", "random", "router", "oracle")  # no paper's
TUNED = ", tuned"


def result_name(selector: str, options: Mapping[str, Any]) -> str:
    """The name of a selector's results: a paper's name stands for its algorithm with the paper's constants alone.

    options: all but the defaults.  A seed changes no algorithm.
    """
    changed = selector not in OURS and any(name != "seed" for name in options)
    return f"{selector}{TUNED}" if changed else selector


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
