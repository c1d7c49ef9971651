"""README's table of measurements, filled from the files in docs/reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from string import Formatter
from typing import Any

from readme_rows import SOURCES, Source

from drafterforge.artifacts.typed import read_json
from drafterforge.errors import ArtifactError
from drafterforge.reporting.reader import curves_of, whole_rows

STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")  # a key or a place, or what stands in brackets
HEADINGS = ("command", "what", "figure", "measured")
Report = Mapping[str, Any]


class Fields(Formatter):
    """Fills templates from one file."""

    def __init__(self, report: Report, path: Path) -> None:
        self.path = path
        self.report = {**report, "rows": whole_rows(report)}

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """The number or text at a path, or one number over another."""
        over, _, under = field_name.partition(" / ")
        value = self.at(over)
        return (value / self.at(under) if under else value), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        """A number in its form."""
        try:
            return format(value, format_spec).replace("%", " %")
        except ValueError:
            raise ArtifactError(f"{self.path} has {value!r} where README wants a number, {format_spec!r}") from None

    def at(self, path: str) -> Any:
        """What a path leads to."""
        try:
            value = look_up(self.report, path)
        except (KeyError, IndexError, TypeError, ValueError, StopIteration):
            value = None
        if not isinstance(value, int | float | str):
            raise ArtifactError(
                f"{self.path} has no `{path}`, which README wants; write it again with "
                "`python scripts/readme_numbers.py --keep`, or change scripts/readme_rows.py"
            )
        return value


def look_up(value: Any, path: str) -> Any:
    """What `path` leads to from `value`; an error of Python's own if it leads nowhere."""
    for key, condition in STEP.findall(path):
        if key:
            value = value[int(key)] if isinstance(value, list) else value[key]
        elif condition.startswith("+"):
            value = sum(row[condition[1:]] for row in value)
        else:
            value = next(row for row in value if is_like(row, condition))
    return value


def is_like(row: Report, condition: str) -> bool:
    """Whether a row has all values of `key=pattern&key=pattern`."""
    pairs = (one.split("=", 1) for one in condition.split("&"))
    return all(fnmatchcase(str(row.get(key)), pattern) for key, pattern in pairs)


def lines_of(source: Source, report: Report, path: Path) -> list[tuple[str, ...]]:
    """The rows of one file."""
    fields = Fields(report, path)
    command = fields.format(source.command)
    measured = ", ".join([str(fields.at("created"))[:10], *([report["dtype"]] if "dtype" in report else [])])
    lines = [("", fields.format(what), fields.format(figure), "") for what, figure in source.rows]
    return [(f"`{command}`", *lines[0][1:3], measured), *lines[1:]]


def device_of(report: Report) -> str:
    """Where it was measured, in words."""
    named = (report.get("device"), curves_of(report).get("profile"), (report.get("metrics") or {}).get("device"))
    return next(filter(None, named), "a device that the file does not name")


def measured(folder: Path) -> Iterator[str]:
    """A table for every device, that of the newest figures first, then what there is to say of single files.

    A source without a file is left out; one of several devices has files NAME.json and NAME@DEVICE.json.
    """
    tables: dict[str, list[tuple[str, ...]]] = {}
    newest: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for source in SOURCES:
        for path in [*folder.glob(f"{source.name}.json"), *sorted(folder.glob(f"{source.name}@*.json"))]:
            report = read_json(path)
            device = device_of(report)
            tables.setdefault(device, []).extend(lines_of(source, report, path))
            newest[device] = max(newest.get(device, ""), str(report.get("created", "")))
            if "note" in report:
                notes.setdefault(report["note"], []).append(f"`{path.name}`")
    for device, lines in sorted(tables.items(), key=lambda one: newest[one[0]], reverse=True):
        yield f"On {device}:"
        yield "\n".join("| " + " | ".join(line) + " |" for line in (HEADINGS, ["---"] * len(HEADINGS), *lines))
    if notes:
        yield "\n".join(f"- {', '.join(names)}: {note}" for note, names in notes.items())
