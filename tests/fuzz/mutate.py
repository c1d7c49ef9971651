"""Malformed inputs: valid bytes with random damage, JSON with random damage, and JSON that hypothesis invents."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.bundle.absurd import ABSURD, node_paths, put

WORDS = (b"\x00", b"\xff", b"\n", b"{}", b"[" * 2000, b"\\ud800", b"\xed\xa0\x80", b"NaN", b"1e999", b"-1", b"9" * 400)
NUMBERS = (0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**62, 2**63 - 1)
VALUES = [*ABSURD, float("nan"), "\ud800", "\x00", "../../etc/passwd", "\x1b[2J", 2**31, 2**62, [0] * 50]


def mutate_bytes(data: bytes, chance: random.Random, seeds: Sequence[bytes] = ()) -> bytes:
    """The data with one to six random changes."""
    content = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        chance.choice(_CHANGES)(content, chance, seeds)
    return bytes(content)


def _flip(content: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def _overwrite(content: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    if len(content) > 8:
        form, start = chance.choice(["<i", "<q", "<I", "<H"]), chance.randrange(len(content) - 8)
        number = chance.choice(NUMBERS) % 2 ** (8 * struct.calcsize(form))
        content[start : start + struct.calcsize(form)] = struct.pack(form.upper(), number)


def _insert(content: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    start = chance.randint(0, len(content))
    content[start:start] = chance.choice(WORDS)


def _delete(content: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    start = chance.randint(0, len(content))
    del content[start : start + chance.choice((1, 4, 64, 4096))]


def _repeat(content: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    start = chance.randint(0, len(content))
    content[start:start] = content[start : start + chance.choice((1, 16, 512))] * chance.randint(1, 8)


def _truncate(content: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    del content[chance.randint(0, len(content)) :]


def _splice(content: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    if seeds:
        seed = chance.choice(seeds)
        start = chance.randint(0, len(content))
        content[start:] = seed[chance.randint(0, len(seed)) :]


_CHANGES = (_flip, _flip, _overwrite, _insert, _delete, _repeat, _truncate, _splice)


def mutate_json(data: bytes, chance: random.Random, seeds: Sequence[bytes] = ()) -> bytes:
    """A JSON document with another value at one to three of its nodes, or with a key more or less."""
    content = json.loads(data)
    for _ in range(chance.randint(1, 3)):
        nodes = list(node_paths(content))
        path = chance.choice(nodes)
        value = _at(content, path)
        if isinstance(value, dict) and chance.random() < 0.5:
            value = dict(value)
            if value and chance.random() < 0.5:
                del value[chance.choice(list(value))]
            else:
                value[chance.choice(("", "x", "kind", "\ud800", "__class__", "../x"))] = chance.choice(VALUES)
        elif isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
            value = value + chance.choice((-1, 1, 10, -(10**6), 10**6))
        else:
            value = chance.choice([*VALUES, _at(content, chance.choice(nodes))])
        content = put(content, path, value)
    return json.dumps(content).encode()


def _at(content: Any, path: Sequence[Any]) -> Any:
    """The value at a path of a document."""
    for key in path:
        content = content[key]
    return content


def mutate_safetensors(data: bytes, chance: random.Random, seeds: Sequence[bytes] = ()) -> bytes:
    """A safetensors file whose header is damaged as JSON, or as text, with its length put right."""
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size]
    header = mutate_json(header, chance) if chance.random() < 0.8 else mutate_bytes(header, chance)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def mixed(*kinds: Callable[..., bytes]) -> Callable[..., bytes]:
    """One of several mutations each time."""

    def mutate(data: bytes, chance: random.Random, seeds: Sequence[bytes] = ()) -> bytes:
        return chance.choice(kinds)(data, chance, seeds)

    return mutate


def documents(keys: Sequence[str]) -> st.SearchStrategy[Any]:
    """JSON documents with these keys and any values."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(VALUES)
    names = st.sampled_from(sorted(keys)) | st.text(max_size=5)
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
        max_leaves=30,
    )
    return st.dictionaries(names, values, max_size=12) | values
