"""Names of drafters that are no artifacts, and of hybrids such as `general+retrieval`."""

from __future__ import annotations

import re
from collections.abc import Iterable

AUTO, POOL = "auto", "pool"  # values of `drafter=`
RETRIEVAL = "retrieval"  # the drafter that needs no training
JOINT = "+"  # separates the two names of a hybrid


def parse_hybrid(name: str) -> tuple[str, str] | None:
    """The two names of a hybrid, such as (`general`, `retrieval`); None if `name` is not a hybrid."""
    first, _, second = name.partition(JOINT)
    return (first, second) if first and second and name.count(JOINT) == 1 else None


def parse_tree(name: str) -> tuple[int, int, int] | None:
    """The numbers of nodes, levels and children of a tree such as `8/3/4`; None if `name` is no tree."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})/(\d{1,6})", name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def domain_of(name: str) -> str:
    """The domain that a drafter is named after, also as part of a hybrid: `sql` for `sql+retrieval`."""
    return (parse_hybrid(name) or (name,))[0]


def parts_of(names: Iterable[str]) -> list[str]:
    """The names with hybrids split into their two drafters, without duplicates."""
    return list(dict.fromkeys(part for name in names for part in parse_hybrid(name) or (name,)))
