"""Where an answer ends: end tokens, stop strings, max_new_tokens and the model's context."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from drafterforge.data.chat import REPLACEMENT
from drafterforge.errors import ConfigError

CHARACTER_BYTES = 4  # most bytes of a character in UTF-8
TAIL = 2 * CHARACTER_BYTES  # tokens that show whether a longer text ends inside a character


class TextStream:
    """The text of a growing answer, decoded a few tokens at a time.

    Each step decodes the tokens of the step before, too, as some tokenizers let a token's text depend on its neighbour.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.text = ""
        self._tokens: list[int] = []
        self._from = self._upto = 0  # first token to decode, and first token whose text is not out yet

    def _decode(self, start: int, end: int) -> str:
        return self.tokenizer.decode(
            self._tokens[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def append(self, token: int) -> str:
        """The text that a further token completes; empty inside a character."""
        self._tokens.append(token)
        if len(self._tokens) - self._upto > TAIL:  # decoding all of them at each token would be quadratic
            tail = self._decode(len(self._tokens) - TAIL, len(self._tokens))
            if len(tail) >= CHARACTER_BYTES and tail.endswith(REPLACEMENT):
                return ""
        before = self._decode(self._from, self._upto)
        text = self._decode(self._from, len(self._tokens))
        if text.endswith(REPLACEMENT):
            return ""
        self._from, self._upto = self._upto, len(self._tokens)
        added = text[len(before) :]
        self.text += added
        return added

    def finish(self) -> str:
        """The remaining text, even if it ends inside a character."""
        added = self._decode(self._from, len(self._tokens))[len(self._decode(self._from, self._upto)) :]
        self._from = self._upto = len(self._tokens)
        self.text += added
        return added


class StopRule:
    """Cuts a cycle's tokens exactly where decoding token by token would have stopped."""

    def __init__(
        self,
        eos_ids: frozenset[int],
        limit: int,
        reason: str,
        stop: Sequence[str] = (),
        stream: TextStream | None = None,
    ) -> None:
        """limit: most tokens, and reason (length | context) why.  stop: strings that end the text, not part of it."""
        if any(not text for text in stop):
            raise ConfigError("a stop string must not be empty")
        if stop and stream is None:
            raise ConfigError("stop strings need a tokenizer")
        self.eos_ids, self.limit, self.reason, self.stop = eos_ids, limit, reason, tuple(stop)
        self.stream = stream
        self.emitted = 0
        self.stop_reason = ""  # eos | stop | length | context once the answer has ended

    @property
    def room(self) -> int:
        """Number of tokens that may still come."""
        return self.limit - self.emitted

    def take(self, tokens: Sequence[int]) -> list[int]:
        """The first tokens, as far as they belong to the answer; sets `stop_reason` if it ends."""
        emitted = []
        for token in tokens:
            emitted.append(token)
            self.emitted += 1
            if token in self.eos_ids:
                self.stop_reason = "eos"
            elif self.stream is not None and self._stopped(self.stream.append(token)):
                self.stop_reason = "stop"
            elif self.emitted >= self.limit:
                self.stop_reason = self.reason
            if self.stop_reason:
                break
        if self.stop_reason and self.stream is not None:
            self._stopped(self.stream.finish())
        return emitted

    def _stopped(self, added: str) -> bool:
        """Whether the added text completes a stop string; then cuts the text before the first one."""
        text = self.stream.text
        starts = [text.find(stop, max(len(text) - len(added) - len(stop) + 1, 0)) for stop in self.stop]
        starts = [start for start in starts if start >= 0]
        if starts:
            self.stream.text = text[: min(starts)]
        return bool(starts)

    @property
    def text(self) -> str:
        """The answer's text so far, without a trailing part that may become a stop string."""
        text = self.stream.text
        if self.stop_reason:
            return text
        held = 0
        for stop in self.stop:
            sizes = range(min(len(stop) - 1, len(text)), 0, -1)
            held = max(held, next((size for size in sizes if text.endswith(stop[:size])), 0))
        return text[: len(text) - held]
