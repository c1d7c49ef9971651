"""The functions that expressions of a grammar file may call; those of RANDOM draw."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drafterforge.prompts import databases, words
from drafterforge.prompts.templates import fill

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?: by (\d+))?")


def options(cell: str) -> Sequence[Any]:
    """What a cell offers: `5..9` or `10..90 by 5` are whole numbers, ends included, `0.4/0.5` are texts."""
    if match := _RANGE.fullmatch(cell):
        return range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
    return cell.split("/")


def is_range(text: str) -> bool:
    """Whether a text is a range of whole numbers, such as `5..9`."""
    return bool(_RANGE.fullmatch(text))


def cells(row: str) -> list[str]:
    """The cells of a row of a word list."""
    return row.split(" | ")


def first_cells(rows: Sequence[str]) -> list[str]:
    """The first cell of every row."""
    return [cells(row)[0] for row in rows]


def spread(ends: str, count: int) -> list[str]:
    """So many values from one end to the other of `7.4 11.2`, written with as many digits."""
    low, high = ends.split()
    digits = len(low.partition(".")[2])
    steps = (float(low) + (float(high) - float(low)) * place / (count - 1) for place in range(count))
    return [f"{step:.{digits}f}" for step in steps]


def ends(text: str, *endings: str) -> bool:
    """Whether the text ends in one of these."""
    return text.endswith(endings)


def without(items: Sequence[Any], item: Any) -> list[Any]:
    """The items but this one."""
    return [other for other in items if other != item]


def joined(items: Sequence[Any], between: str) -> str:
    """The items as one text; empty ones are left out."""
    return between.join(str(item) for item in items if item != "")


def paired(template: str, first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The template, with `{first}` and `{second}`, for every two items."""
    return [fill(template, {"first": a, "second": b}) for a, b in zip(first, second, strict=True)]


def inserted(items: Sequence[Any], place: int, item: Any) -> list[Any]:
    """The items with another one at a place."""
    return [*items[:place], item, *items[place:]]


def emphasized(lines: Sequence[str], terms: Sequence[str]) -> list[str]:
    """The lines with the first mention of each term, in each line, in bold."""
    for term in terms:
        lines = [line.replace(term, f"**{term}**", 1) for line in lines]
    return list(lines)


def composed(languages: Mapping[str, str], code: str, parts: Sequence[str], joint: str, slots: Sequence[str]) -> str:
    """Parallel sentences in one language. Sentences and slots are rows with a cell for each language.

    slots: the rows of {x}, {person}, {when}, {where} and {time}.
    """
    column = list(languages).index(code)
    values = {
        name: cells(row)[column] for name, row in zip(("x", "person", "when", "where", "time"), slots, strict=True)
    }
    return joint.join(fill(cells(part)[column], values) for part in parts)


def choose(rng: random.Random, items: Sequence[Any]) -> Any:
    """One of the items."""
    return rng.choice(items)


def shuffled(rng: random.Random, items: Sequence[Any]) -> list[Any]:
    """The items in another order."""
    items = list(items)
    rng.shuffle(items)
    return items


def several(rng: random.Random, count: int, low: int, high: int) -> list[int]:
    """So many whole numbers from low to high."""
    return [rng.randint(low, high) for _ in range(count)]


def curve(rng: random.Random, ends: str, count: int, shape: str) -> list[str]:
    """Results of an experiment between two ends: up, down, with a peak or a dip in between, or mixed."""
    low, high = map(float, ends.split())
    grid = sorted(low + (high - low) * (place + rng.random()) / count for place in range(count))
    if shape in ("down", "dip"):
        grid.reverse()
    if shape in ("peak", "dip"):  # the last value falls back
        grid[-2:] = [grid[-1], grid[0] + 0.4 * (grid[-2] - grid[0])]
    if shape == "mixed":
        rng.shuffle(grid)
    whole = low.is_integer() and high.is_integer() and high - low > 5
    return [f"{value:.0f}" if whole else f"{value:.1f}" for value in grid]


def passage(rng: random.Random, sentences: Sequence[Sequence[str]], aligned: Sequence[int]) -> list[str]:
    """One alternative of each sentence; those of `aligned` have the same number among their alternatives."""
    numbers = [rng.choice(range(len(alternatives))) for alternatives in sentences]
    for place in aligned:
        numbers[place] = numbers[aligned[0]]
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
