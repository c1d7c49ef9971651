"""Where an answer ends: end tokens, stop strings, the length asked for and the model's context."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from drafterforge.errors import ConfigError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what an unfinished character is decoded to
CHARACTER = 4  # most bytes of a character
TAIL = 2 * CHARACTER  # tokens that tell how a longer text ends


class TextStream:
    """The text of a growing answer, a few tokens decoded at a time.

    Tokens are decoded behind the ones of the last step, since some tokenizers let a token depend on its neighbour.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.text = ""
        self._tokens: list[int] = []
        self._from = self._upto = 0  # tokens decoded together, and those whose text is out

    def _decode(self, start: int, end: int) -> str:
        return self.tokenizer.decode(
            self._tokens[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def append(self, token: int) -> str:
        """The text that one more token completes; empty inside a character."""
        self._tokens.append(token)
        if len(self._tokens) - self._upto > TAIL:  # decoding all that waits after each token would take ever longer
            tail = self._decode(len(self._tokens) - TAIL, len(self._tokens))
            if len(tail) >= CHARACTER and tail.endswith(REPLACEMENT):
                return ""
        before = self._decode(self._from, self._upto)
        whole = self._decode(self._from, len(self._tokens))
        if whole.endswith(REPLACEMENT):
            return ""
        self._from, self._upto = self._upto, len(self._tokens)
        added = whole[len(before) :]
        self.text += added
        return added

    def finish(self) -> str:
        """What is still to come, even if it ends inside a character."""
        added = self._decode(self._from, len(self._tokens))[len(self._decode(self._from, self._upto)) :]
        self._from = self._upto = len(self._tokens)
        self.text += added
        return added


class StopRule:
    """Cuts what a cycle confirms exactly where decoding token by token would have stopped."""

    def __init__(
        self,
        eos_ids: frozenset[int],
        limit: int,
        reason: str,
        stop: Sequence[str] = (),
        stream: TextStream | None = None,
    ) -> None:
        """limit: most tokens, for `reason` (length | context).  stop: strings, not part of the text they end."""
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
        """Tokens that may still come."""
        return self.limit - self.emitted

    def take(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that belong to the answer, from the front; sets `stop_reason` when it ends."""
        taken = []
        for token in tokens:
            taken.append(token)
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
        return taken

    def _stopped(self, added: str) -> bool:
        """Whether the text just added completes a stop string; cuts the text before the first one."""
        text = self.stream.text
        found = [text.find(stop, max(len(text) - len(added) - len(stop) + 1, 0)) for stop in self.stop]
        found = [at for at in found if at >= 0]
        if found:
            self.stream.text = text[: min(found)]
        return bool(found)

    @property
    def text(self) -> str:
        """The answer's text so far, without an end that may yet become a stop string."""
        text = self.stream.text
        if self.stop_reason:
            return text
        held = 0
        for stop in self.stop:
            sizes = range(min(len(stop) - 1, len(text)), 0, -1)
            held = max(held, next((size for size in sizes if text.endswith(stop[:size])), 0))
        return text[: len(text) - held]
