"""What the papers published, as `published.json` has it: every number with paper, table, target, hardware and address.

Other models on other hardware: the numbers show what a table looks like and how large effects were, nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from drafterforge.artifacts.typed import read_json, typed

PATH = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class Paper:
    """A paper and its address."""

    name: str
    address: str


@dataclass(frozen=True)
class PublishedRow:
    """One figure of a method, by column; null where nothing was to be read."""

    method: str
    figure: str  # a key of `papers.FIGURES`
    values: list[float | None]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper for one target."""

    form: str  # of `papers.FORMS`, whose table of ours it stands beside
    paper: str
    table: str
    target: str
    hardware: str
    read: str  # address of what was read
    note: str
    columns: list[str]
    rows: list[PublishedRow]


@dataclass(frozen=True)
class Published:
    """Everything."""

    papers: dict[str, Paper]
    tables: list[PublishedTable]

    def beside(self, form: str) -> list[PublishedTable]:
        """The tables of a form."""
        return [table for table in self.tables if table.form == form]


@cache
def published() -> Published:
    """The file, checked key by key."""
    return typed(Published, read_json(PATH), PATH.name)
