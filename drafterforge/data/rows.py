"""A row of a source of prompts."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.prompts.prompt import Transcript


@dataclass(frozen=True)
class Row:
    """One prompt of a source; fields that the source lacks are None."""

    messages: tuple[dict[str, str], ...]
    source: str
    number: int  # of the line, from 1, or of the row, from 0
    id: str | None = None
    task: str | None = None
    domain: str | None = None
    split: str | None = None
    licence: str | None = None
    transcript: Transcript | None = None  # instead of messages
