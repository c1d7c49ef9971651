"""Checks of config values; errors name the key that the user typed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drafterforge.config.catalogue import did_you_mean
from drafterforge.config.names import AUTO, JOINT, POOL, RETRIEVAL
from drafterforge.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a drafter
RESERVED = {  # names that no trained drafter may have
    RETRIEVAL: "retrieval without a datastore",
    POOL: "the pool of all drafters",
    AUTO: "the default of drafter=",
    "warm": "the default of drafter.init=",
    "scratch": "random weights in drafter.init=",
}


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def require_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    names = ", ".join(choice or "empty" for choice in choices)
    hint = did_you_mean(value, [choice for choice in choices if choice])
    require(value in choices, f"{key} must be one of {names}, got {value!r}{hint}")


def require_at_least(key: str, value: float | None, least: float) -> None:
    """ConfigError if the value is smaller; None passes."""
    require(value is None or value >= least, f"{key} must be >= {least}, got {value}")


def require_counts(group: object, prefix: str, names: str) -> None:
    """ConfigError if a field is below 1; None passes.  names: of the fields, separated by spaces."""
    for name in names.split():
        require_at_least(f"{prefix}.{name}", getattr(group, name), 1)


def require_sizes(key: str, sizes: Sequence[int]) -> None:
    """ConfigError if a layer has no unit."""
    require(all(size >= 1 for size in sizes), f"{key} must list sizes >= 1, got {[*sizes]}")


def require_share(key: str, value: float) -> None:
    require(0.0 <= value <= 1.0, f"{key} must lie in [0, 1], got {value}")


def require_seed(seed: int) -> None:
    require(0 <= seed < 2**32, f"seed must lie in [0, 2**32), got {seed}")


def require_seeds(seed: int, further: Sequence[int]) -> None:
    """ConfigError if a seed is out of range, or two are equal."""
    for number in (seed, *further):
        require_seed(number)
    distinct = len({seed, *further}) == 1 + len(further)
    require(distinct, f"seeds={[*further]} must differ from each other and from seed={seed}")


def require_drafter_name(key: str, name: str) -> None:
    """Refuse a drafter's name that means something else where drafters are named."""
    require(name not in RESERVED, f"{key}={name} is reserved for {RESERVED.get(name)}; type name=OTHER")
    require(JOINT not in name, f"{key}={name} has a {JOINT}, which joins the names of hybrids; leave it out")
    is_plain = not name or NAME.fullmatch(name)
    letters = "a letter or digit (A to z), then at most 99 letters, digits, . _ or -"
    require(is_plain, f"{key}={name!r} is no name of a drafter: it is {letters}; type name=mine, for example")
