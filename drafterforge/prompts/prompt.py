"""A prompt: what the target is asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """What the target is asked; assistant messages among them are the source's own answers."""

    id: str
    domain: str
    task: str  # the unit of the split, '' where the source names none
    messages: tuple[dict[str, str], ...]  # {"role", "content"}
    source: str
