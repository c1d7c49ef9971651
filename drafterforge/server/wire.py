"""Answers in the format of OpenAI's API: complete, or as events of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}  # by stop_reason
DONE = "data: [DONE]\n\n"


@dataclass
class Choice:
    """An answer of a request so far."""

    text: str = ""
    num_tokens: int = 0
    stop_reason: str = ""  # as in `Generation`
    tokens: list[int] = field(default_factory=list)  # its end token included


def usage(num_prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, int]:
    """Numbers of tokens; a prompt with several answers counts once, end tokens of answers count."""
    generated = sum(choice.num_tokens for choice in choices)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": num_prompt_tokens + generated,
    }


def event(content: dict[str, Any]) -> str:
    """A server-sent event, as ASCII JSON, because some clients split lines at Unicode line separators too."""
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"


@dataclass(frozen=True)
class CompletionWire:
    """The format of `/v1/completions`."""

    model: str
    fingerprint: str  # of the target, its dtype and numerics: what determines an answer besides the request
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")

    kind = "text_completion"
    chunk_kind = "text_completion"

    def response(
        self, choices: Sequence[Choice], used: dict[str, int], prompts: Sequence[list[int]] = ()
    ) -> dict[str, Any]:
        """The complete response.  prompts: of each choice, if it has to hold token ids."""
        entries = [self._choice(index, choice) for index, choice in enumerate(choices)]
        for entry, choice, prompt in zip(entries, choices, prompts, strict=False):
            entry |= {"token_ids": choice.tokens, "prompt_token_ids": prompt}  # as vLLM and SGLang name them
        return self._envelope(self.kind, entries) | {"usage": used}

    def opening(self, index: int) -> dict[str, Any] | None:
        """The event before the text of an answer, if there is one."""
        return None

    def chunk(self, index: int, text: str) -> dict[str, Any]:
        """The event with further text of an answer."""
        return self._envelope(self.chunk_kind, [self._delta(index, text)])

    def end(self, index: int, stop_reason: str) -> dict[str, Any]:
        """The event at the end of an answer."""
        return self._envelope(self.chunk_kind, [self._delta(index, "", FINISH_REASONS[stop_reason])])

    def usage_chunk(self, used: dict[str, int]) -> dict[str, Any]:
        """The last event of a stream with `include_usage`."""
        return self._envelope(self.chunk_kind, []) | {"usage": used}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return self._delta(index, choice.text, FINISH_REASONS[choice.stop_reason])

    def _delta(self, index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        header = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return header | {"system_fingerprint": self.fingerprint, "choices": choices}


@dataclass(frozen=True)
class ChatWire(CompletionWire):
    """The format of `/v1/chat/completions`."""

    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        """The event with the role of the message."""
        delta = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._envelope(self.chunk_kind, [delta])

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text}
        finish = FINISH_REASONS[choice.stop_reason]
        return {"index": index, "message": message, "logprobs": None, "finish_reason": finish}

    def _delta(self, index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish}
