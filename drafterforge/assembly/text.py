"""Text in, text out: what `drafterforge.load` and `drafterforge.open` return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from drafterforge.config.catalogue import did_you_mean
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import Sampling
from drafterforge.targets.load import Target

Message = Mapping[str, str]  # {"role": "user", "content": "..."}
Conversation = Sequence[Message]
MAX_NEW_TOKENS = 256


class GenerationOptions(TypedDict, total=False):
    """How an answer is decoded. The same prompt and options give the same text, with any drafter."""

    max_new_tokens: int  # length limit of an answer; 256
    temperature: float  # 0, the default: the most probable token each time
    top_k: int  # sample among the k most probable tokens; 0: all
    top_p: float  # sample among the fewest tokens that hold this probability; 1.0: all
    min_p: float  # sample among tokens at least this times as probable as the best; 0.0: all
    repetition_penalty: float  # above 1: tokens of the text so far become less probable
    seed: int  # of sampling; 0
    stop: str | Sequence[str]  # strings that end an answer and are not part of it
    raw: bool  # complete a text as it is; the default is to take it for a user's message if there is a chat template


class TextEngine:
    """A target with what drafts for it: prompts in, the target's own answers out, only faster.

    A prompt is a text or a conversation, which is a list of messages. A text is taken for a user's message where the
    tokenizer has a chat template, and completed as it is where it has none, or with `raw=True`. Options are those of
    `GenerationOptions`.

    `runtime` is the engine below: token ids in, and drafters of a pool that come and go.
    """

    def __init__(self, runtime: Engine, drafter: str = "") -> None:
        """drafter: what drafts, for `repr`."""
        self.runtime, self.drafter = runtime, drafter

    @property
    def target(self) -> Target:
        """The model whose answers these are."""
        return self.runtime.target

    def __repr__(self) -> str:
        drafter = f"drafter={self.drafter}" if self.drafter else "no drafter"
        return f"TextEngine({self.target!r}, {drafter}, numerics={self.runtime.numerics})"

    @overload
    def generate(self, prompt: str | Conversation, **options: Unpack[GenerationOptions]) -> str: ...
    @overload
    def generate(
        self, prompt: Sequence[str] | Sequence[Conversation], **options: Unpack[GenerationOptions]
    ) -> list[str]: ...
    def generate(self, prompt: Any, **options: Unpack[GenerationOptions]) -> str | list[str]:
        """The answer to a prompt; a list of prompts is decoded together and gives a list of answers."""
        answers = self.answer(prompt, **options)
        return [answer.text for answer in answers] if isinstance(answers, list) else answers.text

    def chat(self, messages: Conversation, **options: Unpack[GenerationOptions]) -> str:
        """The next message of a conversation."""
        if not is_conversation(messages):
            raise DrafterforgeError('chat takes a list of messages such as [{"role": "user", "content": "..."}]')
        return self.answer(messages, **options).text

    def stream(self, prompt: str | Conversation, **options: Unpack[GenerationOptions]) -> Iterator[str]:
        """Yields an answer piece by piece, as it is decoded."""
        max_new_tokens, sampling, stop, raw = read_options(options)
        shown = 0
        for answer in self.runtime.stream(self._prompt(prompt, raw), max_new_tokens, sampling, stop):
            if piece := answer.text[shown:]:
                yield piece
            shown = len(answer.text)

    @overload
    def answer(self, prompt: str | Conversation, **options: Unpack[GenerationOptions]) -> Generation: ...
    @overload
    def answer(
        self, prompt: Sequence[str] | Sequence[Conversation], **options: Unpack[GenerationOptions]
    ) -> list[Generation]: ...
    def answer(self, prompt: Any, **options: Unpack[GenerationOptions]) -> Generation | list[Generation]:
        """As `generate`, with what was measured: `text`, `tokens`, `stop_reason`, `mat`, `time_s` and `cycles`."""
        max_new_tokens, sampling, stop, raw = read_options(options)
        single = not isinstance(prompt, Sequence) or isinstance(prompt, str) or is_conversation(prompt)
        prompts = [self._prompt(item, raw) for item in ([prompt] if single else prompt)]
        answers = self.runtime.generate(prompts, max_new_tokens, sampling, stop)
        return answers[0] if single else answers

    def _prompt(self, prompt: str | Conversation, raw: bool) -> str | list[dict[str, str]]:
        """A prompt as the runtime takes it: text to be completed, or messages."""
        if is_conversation(prompt):
            return [dict(message) for message in prompt]
        if not isinstance(prompt, str):
            raise DrafterforgeError(
                f"a prompt is a text or a list of messages, got {type(prompt).__name__}; "
                "token ids go to engine.runtime.generate"
            )
        if raw or not self.target.tokenizer.chat_template:
            return prompt
        return [{"role": "user", "content": prompt}]


def is_conversation(prompt: object) -> bool:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and all(isinstance(item, Mapping) for item in prompt)


def read_options(options: Mapping[str, Any]) -> tuple[int, Sampling, tuple[str, ...], bool]:
    """max_new_tokens, sampling, stop and raw; refuses options that do not exist."""
    known = GenerationOptions.__annotations__
    for name in options:
        if name not in known:
            hint = did_you_mean(f"{name}=", {f"{option}=": f"{option}=" for option in known})
            raise ConfigError(f"there is no option {name}={hint or '; there is ' + ', '.join(known)}")
    given = dict(options)
    max_new_tokens, raw = given.pop("max_new_tokens", MAX_NEW_TOKENS), given.pop("raw", False)
    stop = given.pop("stop", ())
    return max_new_tokens, Sampling(**given), (stop,) if isinstance(stop, str) else tuple(stop), raw
