"""Values that no document has, and functions that put one of them at any node of a JSON document."""

from __future__ import annotations

ABSURD = [None, True, -1, 0, 10**15, 10**400, 1.5, -1e300, "", "x" * 5000, "../..", [], [[[]]], {}, {"a": 1}]


def node_paths(value, path=()):
    """The path of every node of a JSON document: its keys and indices from the root on."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from node_paths(child, (*path, key))


def put(value, path, new):
    """A copy of the document with `new` at the path."""
    if not path:
        return new
    value = dict(value) if isinstance(value, dict) else list(value)
    value[path[0]] = put(value[path[0]], path[1:], new)
    return value
