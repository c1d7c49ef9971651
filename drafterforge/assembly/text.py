"""Text in, text out: what `drafterforge.load` and `drafterforge.open` return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from drafterforge.config.catalogue import did_you_mean
from drafterforge.errors import ConfigError, DrafterforgeError, quote
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.sampling import Sampling
from drafterforge.targets.load import Target

Message = Mapping[str, str]  # {"role": "user", "content": "..."}
Conversation = Sequence[Message]
MAX_NEW_TOKENS = 256


class GenerationOptions(TypedDict, total=False):
    """How an answer is decoded. The same prompt and options give the same text with any drafter."""

    max_new_tokens: int  # length limit of an answer; default 256
    temperature: float  # default 0: always the most probable token
    top_k: int  # sample among the k most probable tokens; default 0: all
    top_p: float  # sample among the fewest tokens whose probabilities sum to top_p; default 1.0: all
    min_p: float  # sample among tokens with at least min_p times the best token's probability; default 0.0: all
    repetition_penalty: float  # above 1: tokens that occur in the text become less probable; default 1.0
    seed: int  # of sampling; default 0
    stop: str | Sequence[str]  # strings that end an answer and are not part of it
    raw: bool  # complete the text as it is, without the chat template; default False


class TextEngine:
    """A target with a drafter: takes prompts, returns the target's own answers.

    A prompt is a text or a conversation, which is a list of messages. If the tokenizer has a chat template, a text
    becomes a user's message, unless `raw=True`; otherwise it is completed as it is. `GenerationOptions` lists the
    options.

    `runtime` is the engine below, which takes token ids, and can add drafters to a pool and remove them.
    """

    def __init__(self, runtime: Engine, drafter: str = "") -> None:
        """drafter: name of the drafter, for `repr`."""
        self.runtime, self.drafter = runtime, drafter

    @property
    def target(self) -> Target:
        """The target model."""
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
        """The answer to a prompt; for a list of prompts, which are decoded together, a list of answers."""
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
        num_chars = 0
        for answer in self.runtime.stream(self._prompt(prompt, raw), max_new_tokens, sampling, stop):
            if piece := answer.text[num_chars:]:
                yield piece
            num_chars = len(answer.text)

    @overload
    def answer(self, prompt: str | Conversation, **options: Unpack[GenerationOptions]) -> Generation: ...
    @overload
    def answer(
        self, prompt: Sequence[str] | Sequence[Conversation], **options: Unpack[GenerationOptions]
    ) -> list[Generation]: ...
    def answer(self, prompt: Any, **options: Unpack[GenerationOptions]) -> Generation | list[Generation]:
        """As `generate`, but returns `Generation`s: `text`, `tokens`, `stop_reason`, `mat`, `time_s`, `cycles`."""
        max_new_tokens, sampling, stop, raw = read_options(options)
        single = not isinstance(prompt, Sequence) or isinstance(prompt, str) or is_conversation(prompt)
        prompts = [self._prompt(text, raw) for text in ([prompt] if single else prompt)]
        answers = self.runtime.generate(prompts, max_new_tokens, sampling, stop)
        return answers[0] if single else answers

    def _prompt(self, prompt: str | Conversation, raw: bool) -> str | list[dict[str, str]]:
        """The prompt as `Engine.generate` takes it: text to complete, or messages."""
        if is_conversation(prompt):
            return [dict(message) for message in prompt]
        if not isinstance(prompt, str):
            raise DrafterforgeError(
                f"a prompt is a text or a list of messages, got {type(prompt).__name__}; "
                "token ids go to engine.runtime.generate"
            )
        if not prompt.strip() and not raw:
            raise DrafterforgeError("the prompt is empty; with raw=True, white space is completed as it is")
        if raw or not self.target.tokenizer.chat_template:
            return prompt
        return [{"role": "user", "content": prompt}]


def is_conversation(prompt: object) -> bool:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and all(isinstance(entry, Mapping) for entry in prompt)


def read_options(options: Mapping[str, Any]) -> tuple[int, Sampling, tuple[str, ...], bool]:
    """max_new_tokens, sampling, stop and raw from `options`; ConfigError for an unknown option."""
    names = GenerationOptions.__annotations__
    for name in options:
        if name not in names:
            hint = did_you_mean(f"{name}=", [f"{option}=" for option in names])
            raise ConfigError(f"there is no option {name}={hint or '; the options are ' + ', '.join(names)}")
    sampling = dict(options)
    max_new_tokens, raw = sampling.pop("max_new_tokens", MAX_NEW_TOKENS), sampling.pop("raw", False)
    stop = sampling.pop("stop", ())
    if type(max_new_tokens) is not int:
        raise ConfigError(f"max_new_tokens must be a whole number, got {quote(max_new_tokens)}")
    if not isinstance(stop, str) and not (isinstance(stop, Sequence) and all(isinstance(text, str) for text in stop)):
        raise ConfigError(f"stop must be a text or a list of texts, got {quote(stop)}")
    return max_new_tokens, Sampling(**sampling), (stop,) if isinstance(stop, str) else tuple(stop), raw
