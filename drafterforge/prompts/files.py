"""Reads grammar files (word lists and families of tasks in YAML; see `prompts/README.md`) into tasks and writers."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from drafterforge.errors import ConfigError, shorten
from drafterforge.prompts.expressions import Expression, compile_expression
from drafterforge.prompts.functions import cells, is_range, options
from drafterforge.prompts.templates import fill

Writer = Callable[[random.Random], str]  # phrases one task as a user message
Values = dict[str, Any]
Step = Callable[[Values, random.Random | None], None]  # sets one slot, or several

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C if available
_REPEAT = re.compile(r"(\d+)x(?: (.*))?")
MAX_VALUES = 1_000_000  # of a grammar file; ours have some thousands
_FILE_KEYS = {"order", "carries_text", "shared", "lists", "tasks"}
_MISTAKES = (ConfigError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_BODY_KEYS = {"when", "first", "before", "asks", "after", "draw", "cases", "last", "text"}
_FAMILY_KEYS = _BODY_KEYS - {"when"} | {"task", "for", "let", "nested"}


@cache
def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file; its text blocks become lists of lines."""
    try:
        content = yaml.load(Path(path).expanduser().read_text(encoding="utf-8"), Loader=_LOADER)
        return _blocks_to_lists(content, itertools.count())
    except ConfigError as error:
        raise ConfigError(f"the grammar {path}: {error}") from None
    except RecursionError:
        raise ConfigError(f"the grammar {path} is nested too deeply") from None
    except OSError as error:
        raise ConfigError(f"cannot read the grammar {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the grammar {path} is not YAML: {' '.join(str(error).split())}") from error


def read_grammar(path: str | Path) -> dict[str, Any]:
    """The content of a grammar file; ConfigError if its keys are wrong."""
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("tasks"), list):
        raise ConfigError(f"the grammar {path} has no tasks; add a list `tasks:` as in prompts/README.md")
    _check_keys(content, _FILE_KEYS, f"the grammar {path}")
    return content


def read_tasks(path: str | Path) -> Iterator[tuple[str, Writer]]:
    """Yield the tasks of a grammar file with their writers, in order."""
    content = read_grammar(path)
    for number, family in enumerate(content["tasks"], start=1):
        try:
            yield from _family(family, content.get("lists") or {})
        except _MISTAKES as error:
            name = family.get("task", "without a name") if isinstance(family, dict) else family
            raise ConfigError(f"{path}, family {number} of tasks ({shorten(name)}): {_reason(error)}") from error


def lines(block: str) -> list[str]:
    """The entries of a block, one per line; backslash-n is a line break, `3x TEXT` repeats it three times."""
    entries: list[str] = []
    for line in block.splitlines():
        if match := _REPEAT.fullmatch(line.rstrip()):
            entries += [(match[2] or "").replace("\\n", "\n")] * int(match[1])
        elif line.strip():
            entries.append(line.strip().replace("\\n", "\n"))
    return entries


def _blocks_to_lists(content: Any, counted: Iterator[int]) -> Any:
    """Replace text blocks (texts that end in a line break) by lists of their lines.

    counted: the values so far; YAML's aliases can repeat values without end.
    """
    if next(counted) > MAX_VALUES:
        raise ConfigError(f"it has more than {MAX_VALUES:,} values; leave out aliases (`*name`) of aliases")
    if isinstance(content, dict):
        return {key: _blocks_to_lists(value, counted) for key, value in content.items()}
    if isinstance(content, list):
        return [_blocks_to_lists(value, counted) for value in content]
    block = isinstance(content, str) and content.endswith("\n") and not content.isspace()
    return lines(content) if block else content


def _family(family: Mapping[str, Any], lists: Mapping[str, Any]) -> Iterator[tuple[str, Writer]]:
    _check_keys(family, _FAMILY_KEYS, "a family of tasks")
    asks, loops = family.get("asks"), family.get("for") or {}
    lists = {**lists, "asks": asks}
    let = _steps(family.get("let"), lists, draws=False)
    columns = [name for header in loops for name in cells(header)]
    offers = [name.removesuffix("#") for name in columns if name.endswith("#")]
    bodies: dict[str | None, _Body] = {}
    for row in _rows(loops, lists, {}):
        values = dict(row)
        for step in let:
            step(values, None)
        kind = values["kind"] if isinstance(asks, dict) else None
        if kind not in bodies:
            body = family if kind is None else {**family, "asks": asks[kind]}
            bodies[kind] = _Body(body, lists, offers)
        nested = [name for name, value in row.items() if "{" in str(value)] if family.get("nested") else []
        task = fill(family["task"], values)
        yield task, partial(_write, task, bodies[kind], values, nested)


def _write(task: str, body: _Body, values: Values, nested: Sequence[str], rng: random.Random) -> str:
    try:
        return body.write(values.copy(), rng, nested)
    except _MISTAKES as error:
        raise ConfigError(f"the task {task!r} of a grammar cannot be written: {_reason(error)}") from error


def _rows(loops: Mapping[str, Any], lists: Mapping[str, Any], bound: Values) -> Iterator[Values]:
    """Yield the slots of each row of a family's nested loops; the last list varies fastest."""
    if not loops:
        yield bound
        return
    (header, source), *inner_loops = loops.items()
    names = [name.removesuffix("#") for name in cells(header)]
    items = _source(source, lists)(bound, None)
    for item in items.items() if isinstance(items, dict) and len(names) > 1 else items:
        row = item if isinstance(item, dict) else dict(zip(names, _cells(item, names), strict=True))
        yield from _rows(dict(inner_loops), lists, {**bound, **row})


def _cells(item: Any, names: Sequence[str]) -> Sequence[Any]:
    row = [item] if len(names) == 1 else cells(item) if isinstance(item, str) else item
    if len(row) != len(names):
        raise ConfigError(f"the row {item!r} has {len(row)} cells, wanted {len(names)}: {', '.join(names)}")
    return row


class _Body:
    """What a writer draws, in this order: first, before, asks, after, offers, draw, the kind's slots, cases, last."""

    def __init__(self, spec: Mapping[str, Any], lists: Mapping[str, Any], offers: Sequence[str] = ()) -> None:
        asks, slots = spec.get("asks"), {}
        if isinstance(asks, dict):  # the kind has its own slots
            slots = {name: value for name, value in asks.items() if name != "ask"}
            asks = asks["ask"]
        phrase = (spec.get("before"), asks, spec.get("after"))
        self.first = _steps(spec.get("first"), lists)
        self.phrase = [_source(part, lists) for part in phrase if part is not None]
        self.offers = offers
        self.draw = _steps(spec.get("draw"), lists) + _steps(slots, lists)
        self.cases = [_case(case, lists) for case in spec.get("cases", ())]
        self.last = _steps(spec.get("last"), lists)
        self.text = _value(spec["text"], lists) if "text" in spec else None

    def write(self, values: Values, rng: random.Random, nested: Sequence[str] = ()) -> str:
        """Write one prompt; adds the drawn slots to `values`."""
        for step in self.first:
            step(values, rng)
        for _ in range(2 if nested else 0):  # a cell may refer to a cell that has slots itself
            values |= {name: fill(values[name], values) for name in nested}
        templates = [rng.choice(part(values, rng)) for part in self.phrase]
        for name in self.offers:
            values[name] = rng.choice(options(values[name]))
        for step in self.draw:
            step(values, rng)
        prompt = fill(" ".join(template for template in templates if template), values)
        for when, case in self.cases:
            if when(values, rng):
                prompt = case.write(values, rng)
                break
        values["prompt"] = prompt
        for step in self.last:
            step(values, rng)
        return prompt if self.text is None else self.text(values, rng)


def _case(case: Mapping[str, Any], lists: Mapping[str, Any]) -> tuple[Expression, _Body]:
    _check_keys(case, _BODY_KEYS, "a case")
    return _source(case.get("when", "True"), lists), _Body(case, lists)


def _steps(slots: Any, lists: Mapping[str, Any], draws: bool = True) -> list[Step]:
    if isinstance(slots, list):
        return [step for part in slots for step in _steps(part, lists, draws)]
    return [
        _step(cells(names.replace(", ", " | ")), _value(value, lists, draws)) for names, value in (slots or {}).items()
    ]


def _step(names: list[str], value: Expression) -> Step:
    def set_slots(values: Values, rng: random.Random | None) -> None:
        if len(names) == 1:
            values[names[0]] = value(values, rng)
        else:
            values.update(zip(names, value(values, rng), strict=True))

    return set_slots


def _value(value: Any, lists: Mapping[str, Any], draws: bool = True) -> Expression:
    """A slot's value: drawn from a list or range, an expression after `=`, a template, or a constant."""
    if isinstance(value, str) and value.startswith("="):
        return compile_expression(value[1:], lists)
    if isinstance(value, str) and is_range(value):
        value = options(value)
    if isinstance(value, list | range) and draws:
        return lambda values, rng: rng.choice(value)
    if isinstance(value, str):
        return lambda values, rng: fill(value, values)
    return lambda values, rng: value


def _source(part: Any, lists: Mapping[str, Any]) -> Expression:
    """A list, given as such or as an expression."""
    if isinstance(part, str):
        return compile_expression(part.removeprefix("="), lists)
    return lambda values, rng: part


def _check_keys(keys: Mapping[str, Any], allowed: set[str], owner: str) -> None:
    for key in keys:
        if key not in allowed:
            raise ConfigError(f"{owner} has no key {key!r}; there are {', '.join(sorted(allowed))}")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigError) else shorten(f"{type(error).__name__}: {error}", 300)
