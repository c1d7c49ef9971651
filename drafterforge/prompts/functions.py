"""The functions that grammar expressions may call; those in RANDOM take a random generator."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drafterforge.prompts import databases, words
from drafterforge.prompts.templates import fill

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?: by (\d+))?")


def options(cell: str) -> Sequence[Any]:
    """The choices in a cell: `5..9` and `10..90 by 5` are integers, ends included; `0.4/0.5` are texts."""
    if match := _RANGE.fullmatch(cell):
        return range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
    return cell.split("/")


def is_range(text: str) -> bool:
    return bool(_RANGE.fullmatch(text))


def cells(row: str) -> list[str]:
    return row.split(" | ")


def first_cells(rows: Sequence[str]) -> list[str]:
    return [cells(row)[0] for row in rows]


def spread(ends: str, count: int) -> list[str]:
    """`count` evenly spaced values between ends such as `7.4 11.2`, with the same number of digits."""
    low, high = ends.split()
    digits = len(low.partition(".")[2])
    steps = (float(low) + (float(high) - float(low)) * index / (count - 1) for index in range(count))
    return [f"{step:.{digits}f}" for step in steps]


def ends(text: str, *endings: str) -> bool:
    return text.endswith(endings)


def without(items: Sequence[Any], item: Any) -> list[Any]:
    """The items without those equal to `item`."""
    return [candidate for candidate in items if candidate != item]


def joined(items: Sequence[Any], between: str) -> str:
    """The non-empty items joined to one text."""
    return between.join(str(item) for item in items if item != "")


def paired(template: str, first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The template, with `{first}` and `{second}`, filled with each pair of items."""
    return [fill(template, {"first": a, "second": b}) for a, b in zip(first, second, strict=True)]


def inserted(items: Sequence[Any], index: int, item: Any) -> list[Any]:
    """The items with `item` inserted at an index."""
    return [*items[:index], item, *items[index:]]


def emphasized(lines: Sequence[str], terms: Sequence[str]) -> list[str]:
    """The lines with the first mention of each term per line in bold."""
    for term in terms:
        lines = [line.replace(term, f"**{term}**", 1) for line in lines]
    return list(lines)


def composed(languages: Mapping[str, str], code: str, parts: Sequence[str], joint: str, slots: Sequence[str]) -> str:
    """Sentences in the language `code`.  parts, slots: rows with one cell per language.

    slots: the rows of {x}, {person}, {when}, {where} and {time}.
    """
    column = list(languages).index(code)
    values = {
        name: cells(row)[column] for name, row in zip(("x", "person", "when", "where", "time"), slots, strict=True)
    }
    return joint.join(fill(cells(part)[column], values) for part in parts)


def choose(rng: random.Random, items: Sequence[Any]) -> Any:
    return rng.choice(items)


def shuffled(rng: random.Random, items: Sequence[Any]) -> list[Any]:
    items = list(items)
    rng.shuffle(items)
    return items


def several(rng: random.Random, count: int, low: int, high: int) -> list[int]:
    """`count` random integers from low to high."""
    return [rng.randint(low, high) for _ in range(count)]


def curve(rng: random.Random, ends: str, count: int, shape: str) -> list[str]:
    """Random experimental results between two ends.  shape: up, down, peak, dip or mixed."""
    low, high = map(float, ends.split())
    grid = sorted(low + (high - low) * (index + rng.random()) / count for index in range(count))
    if shape in ("down", "dip"):
        grid.reverse()
    if shape in ("peak", "dip"):  # turn back at the end
        grid[-2:] = [grid[-1], grid[0] + 0.4 * (grid[-2] - grid[0])]
    if shape == "mixed":
        rng.shuffle(grid)
    is_whole = low.is_integer() and high.is_integer() and high - low > 5
    return [f"{value:.0f}" if is_whole else f"{value:.1f}" for value in grid]


def passage(rng: random.Random, sentences: Sequence[Sequence[str]], aligned: Sequence[int]) -> list[str]:
    """A random alternative of each sentence; sentences in `aligned` use the same index."""
    numbers = [rng.choice(range(len(alternatives))) for alternatives in sentences]
    for index in aligned:
        numbers[index] = numbers[aligned[0]]
    return [alternatives[number] for alternatives, number in zip(sentences, numbers, strict=True)]


PURE: dict[str, Callable[..., Any]] = {
    "options": options,
    "first_cells": first_cells,
    "spread": spread,
    "ends": ends,
    "without": without,
    "joined": joined,
    "paired": paired,
    "inserted": inserted,
    "emphasized": emphasized,
    "composed": composed,
    "the": words.the,
    "singular": words.singular,
    "uncapital": words.uncapital,
    "third_person": words.third_person,
    "lettered": words.lettered,
    "bullets": words.bullets,
    "enumeration": words.enumeration,
    "fence": words.fence,
    "indented": words.indented,
    "each_database": lambda lines: [databases.database(line) for line in lines],
    "questions": databases.questions,
    "split": lambda text, between: text.split(between),
    "words": lambda text: text.split(),
    "stripped": lambda text, characters: text.rstrip(characters),
    "without_prefix": lambda text, prefix: text.removeprefix(prefix),
    "without_suffix": lambda text, suffix: text.removesuffix(suffix),
    "get": lambda mapping, key, default: mapping.get(key, default),
    "range": range,
    "len": len,
    "max": max,
    "min": min,
    "str": str,
}
RANDOM: dict[str, Callable[..., Any]] = {
    "choose": choose,
    "sample": random.Random.sample,
    "shuffled": shuffled,
    "random": random.Random.random,
    "randint": random.Random.randint,
    "several": several,
    "curve": curve,
    "passage": passage,
    "schema": databases.schema,
    "broken": databases.broken,
}
