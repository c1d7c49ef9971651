"""Reads `published.json`: figures from the papers, each with paper, table, target, hardware and address.

They are of other models on other hardware and show only the size of effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from drafterforge.artifacts.json_input import parse_as, read_json

PATH = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class Paper:
    """A paper and its address."""

    name: str
    address: str


@dataclass(frozen=True)
class PublishedRow:
    """One figure of a method, by column; null if it could not be read."""

    method: str
    figure: str  # key in `papers.form.FIGURES`
    values: list[float | None]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper for one target."""

    form: str  # key of the form in `papers.forms.FORMS`
    paper: str
    table: str  # its number, if it is in our source
    version: str  # of the paper, and in which form it was read
    target: str
    hardware: str
    read: str  # address of the source that was read
    note: str
    columns: list[str]
    rows: list[PublishedRow]


@dataclass(frozen=True)
class Published:
    """Content of `published.json`."""

    papers: dict[str, Paper]
    tables: list[PublishedTable]

    def of_form(self, form: str) -> list[PublishedTable]:
        """The tables of a form."""
        return [table for table in self.tables if table.form == form]


@cache
def published() -> Published:
    """Read and check the file."""
    return parse_as(Published, read_json(PATH), PATH.name)
