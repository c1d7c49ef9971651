"""Templates: text with {slots}.

`{topic}` is the slot's value, `{Topic}` capitalises it, `{a topic}` and `{A topic}` add an article, `{price:.2f}`
formats a number, `{table.row}` is a field of a record, `{{` and `}}` are braces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from string import Formatter
from typing import Any

from drafterforge.errors import ConfigError
from drafterforge.prompts.words import an, capital

_FIELD = re.compile(r"([aA] )?([A-Za-z_]\w*)(\.[a-z_]\w*)?")
Part = Callable[[Mapping[str, Any]], str]


class Record(str):
    """A text with fields, such as a table's name with its columns."""

    fields: dict[str, Any]

    def __new__(cls, name: str, **fields: Any) -> Record:
        record = super().__new__(cls, name)
        record.fields = fields
        return record


def fill(template: str, values: Mapping[str, Any]) -> str:
    if "{" not in template and "}" not in template:
        return template
    return "".join([part if isinstance(part, str) else part(values) for part in _parts(template)])


def slots(template: str) -> set[str]:
    return {_FIELD.fullmatch(name)[2].lower() for _, name, _, _ in Formatter().parse(template) if name}


@cache
def _parts(template: str) -> tuple[str | Part, ...]:
    parts: list[str | Part] = []
    try:
        for literal, name, spec, _ in Formatter().parse(template):
            if literal:
                parts.append(literal)
            if name is not None:
                parts.append(_slot(name, spec or ""))
    except ValueError as error:
        raise ConfigError(f"{template!r:.80}: {error}; write {{{{ and }}}} for braces") from error
    return tuple(parts)


def _slot(field: str, spec: str) -> Part:
    match = _FIELD.fullmatch(field)
    if not match:
        raise ConfigError(f"no slot can be called {{{field}}}; type a name such as {{topic}}")
    article, name, attribute = match[1], match[2], (match[3] or "")[1:]
    upper = article == "A " if article else name[0].isupper()
    name = name[0].lower() + name[1:]

    def text(values: Mapping[str, Any]) -> str:
        if name not in values:
            raise ConfigError(f"no slot is called {name!r}; there are {', '.join(sorted(values))}")
        value = values[name].fields[attribute] if attribute else values[name]
        value = format(value, spec)
        value = an(value) if article else value
        return capital(value) if upper else value

    return text
