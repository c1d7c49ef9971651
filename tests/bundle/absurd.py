"""Every place in a JSON document, and values that no document has there."""

from __future__ import annotations

ABSURD = [None, True, -1, 0, 10**15, 10**400, 1.5, -1e300, "", "x" * 5000, "../..", [], [[[]]], {}, {"a": 1}]


def leaves(value, place=()):
    """Every place in a JSON document."""
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from leaves(one, (*place, key))


def put(value, place, new):
    """The document with another value at a place."""
    if not place:
        return new
    value = dict(value) if isinstance(value, dict) else list(value)
    value[place[0]] = put(value[place[0]], place[1:], new)
    return value
