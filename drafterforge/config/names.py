"""Names of drafters that are two in one, such as `general+retrieval`."""

from __future__ import annotations

from collections.abc import Iterable

JOINT = "+"  # between the two


def parse_hybrid(name: str) -> tuple[str, str] | None:
    """The names of the EAGLE-3 drafter and of retrieval in `general+retrieval`; None for a name of one drafter."""
    first, _, second = name.partition(JOINT)
    return (first, second) if first and second and name.count(JOINT) == 1 else None


def domain_of(name: str) -> str:
    """What a drafter is the expert of by its name, with or without retrieval in its trees: `sql` of `sql+retrieval`."""
    return (parse_hybrid(name) or (name,))[0]


def parts_of(names: Iterable[str]) -> list[str]:
    """The drafters that these names are made of, each once."""
    return list(dict.fromkeys(part for name in names for part in parse_hybrid(name) or (name,)))
