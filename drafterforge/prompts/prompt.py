"""The prompt type."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transcript:
    """A prompt and its answer as the token ids that a target read and emitted."""

    ids: tuple[int, ...]
    prompt_tokens: int
    finished: bool  # the answer ended by itself


@dataclass(frozen=True)
class Prompt:
    """A chat request; its assistant messages are answers from the source."""

    id: str
    domain: str
    task: str  # prompts of one task are in the same split; "" if the source names none
    messages: tuple[dict[str, str], ...]  # {"role", "content"}
    source: str
    transcript: Transcript | None = None  # of recorded traffic, which has no messages
