"""A table of a report as text, and the form of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from drafterforge.reporting.reader import number

MAX_ROWS = 200  # of a table; report.json has all rows


@dataclass(frozen=True)
class ReportTable:
    """Headings and cells; columns of names come first, then columns of numbers."""

    title: str
    headings: list[str]
    cells: list[list[str]]
    name_columns: int = 1
    note: str = ""
    flagged: list[int] = field(default_factory=list)  # indices of rows with mismatches

    @staticmethod
    def trimmed(
        title: str,
        headings: Sequence[str],
        cells: Sequence[list[str]],
        name_columns: int = 1,
        note: str = "",
        flagged: Sequence[int] = (),
    ) -> ReportTable:
        """A table of at most `MAX_ROWS` rows without empty columns."""
        filled = [column for column in range(len(headings)) if not column or any(row[column] for row in cells)]
        num_names = sum(column < name_columns for column in filled)
        if len(cells) > MAX_ROWS:
            note += f" The first {MAX_ROWS} of {len(cells):,} rows; report.json has all of them."
        rows = [[row[column] for column in filled] for row in cells[:MAX_ROWS]]
        return ReportTable(title, [headings[column] for column in filled], rows, num_names, note.strip(), list(flagged))


def format_number(value: Any, form: str = ".2f", unit: str = "") -> str:
    """A number with its unit; empty if the value is no number."""
    figure = number(value)
    return "" if figure is None else f"{figure:{form}}{unit}"
