"""Answers as OpenAI's clients read them: whole, or as the events of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FINISH = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
DONE = "data: [DONE]\n\n"


@dataclass
class Choice:
    """One of a request's answers, so far."""

    text: str = ""
    num_tokens: int = 0
    stop_reason: str = ""  # as in `Generation`


def usage(num_prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, int]:
    """Tokens read and generated; a prompt with several answers counts once, end tokens count."""
    generated = sum(choice.num_tokens for choice in choices)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": num_prompt_tokens + generated,
    }


def event(content: dict[str, Any]) -> str:
    """A server-sent event; JSON in ASCII, as some clients break lines at other characters than newlines."""
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"


@dataclass(frozen=True)
class CompletionWire:
    """Names of `/v1/completions`."""

    model: str
    fingerprint: str  # of whatever could change an answer with a given seed
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")

    kind = "text_completion"
    chunk_kind = "text_completion"

    def whole(self, choices: Sequence[Choice], used: dict[str, int]) -> dict[str, Any]:
        """All answers."""
        found = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return self._envelope(self.kind, found) | {"usage": used}

    def opening(self, index: int) -> dict[str, Any] | None:
        """What a stream says before an answer's text."""
        return None

    def chunk(self, index: int, text: str) -> dict[str, Any]:
        """More of an answer's text."""
        return self._envelope(self.chunk_kind, [self._delta(index, text)])

    def end(self, index: int, stop_reason: str) -> dict[str, Any]:
        """The end of an answer."""
        return self._envelope(self.chunk_kind, [self._delta(index, "", FINISH[stop_reason])])

    def usage_chunk(self, used: dict[str, int]) -> dict[str, Any]:
        """The end of a stream that was asked for it."""
        return self._envelope(self.chunk_kind, []) | {"usage": used}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return self._delta(index, choice.text, FINISH[choice.stop_reason])

    def _delta(self, index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        named = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return named | {"system_fingerprint": self.fingerprint, "choices": choices}


@dataclass(frozen=True)
class ChatWire(CompletionWire):
    """Names of `/v1/chat/completions`."""

    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        """Who speaks."""
        delta = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._envelope(self.chunk_kind, [delta])

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": FINISH[choice.stop_reason]}

    def _delta(self, index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish}
