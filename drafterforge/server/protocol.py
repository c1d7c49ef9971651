"""Requests as OpenAI's clients write them, checked; what cannot be done is refused by name.

Other fields that are not known are ignored: they ask for nothing that would change an answer.

`top_k`, `min_p` and `repetition_penalty` come as `extra_body`, as with vLLM.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from drafterforge.runtime.engine import Prompt
from drafterforge.runtime.sampling import Sampling
from drafterforge.server.failures import ApiError

MAX_STOPS, MAX_STOP_LENGTH = 4, 256
SEEDS = 2**64
SHOWN = 60  # characters of a wrong value that are repeated
IDLE: dict[str, tuple] = {  # fields that are not supported, with the values that ask for nothing
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    # of vLLM and other servers that speak this API
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
}
Asked = TypeVar("Asked", bound="AnswerRequest")


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("wrong", "{words}", {"words": message})


def _stops(value: Any) -> Any:
    """One stop string or several."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(stop, str) for stop in found):
        raise _wrong("wanted text or a list of texts")
    if len(found) > MAX_STOPS or any(not 0 < len(stop) <= MAX_STOP_LENGTH for stop in found):
        raise _wrong(f"wanted at most {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters")
    return found


def _prompts(value: Any) -> list[str | list[int]]:
    """One prompt or several, each text or token ids."""
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(part) is int for part in value)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise _wrong("wanted text, a list of texts, token ids, or a list of lists of token ids")
    texts = all(isinstance(one, str) for one in value)
    if not texts and not all(isinstance(one, list) and all(type(part) is int for part in one) for one in value):
        raise _wrong("wanted text, a list of texts, token ids, or a list of lists of token ids")
    return value


def _parts(value: Any) -> Any:
    """Text is a content of one part."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _nothing(value: Any) -> None:
    """A field of a message that must be empty: leaving it out would change what the target reads."""
    if value not in (None, []):
        raise _wrong("not supported; leave it out")


class Fields(BaseModel):
    """No conversions: a number in quotes is a mistake."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class TextPart(Fields):
    """A part of a message; nothing but text is read."""

    type: Literal["text"]
    text: str


class Message(Fields):
    """A turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart], BeforeValidator(_parts)]
    tool_calls: Annotated[None, BeforeValidator(_nothing)] = None
    function_call: Annotated[None, BeforeValidator(_nothing)] = None
    audio: Annotated[None, BeforeValidator(_nothing)] = None

    @property
    def plain(self) -> dict[str, str]:
        """As chat templates know it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "".join(part.text for part in self.content)}


class StreamOptions(Fields):
    """What a stream says besides the text."""

    include_usage: bool = False


class AnswerRequest(Fields, ABC):
    """What both kinds of requests have in common."""

    model: str
    n: int = Field(1, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=2**31)  # 0 and -1: all
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    seed: int = Field(default_factory=lambda: secrets.randbelow(2**63), ge=-(2**63), lt=SEEDS)
    stop: Annotated[list[str], BeforeValidator(_stops)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    @abstractmethod
    def prompts(self) -> list[Prompt]:
        """What is to be answered, each `n` times."""

    @property
    def limit(self) -> tuple[str, int | None]:
        """Most tokens of an answer, and the field that says so; None: the server's own limit."""
        newer = self.max_completion_tokens
        return ("max_tokens", self.max_tokens) if newer is None else ("max_completion_tokens", newer)

    def sampling(self, choice: int) -> Sampling:
        """Of a prompt's answer number `choice`, whose seed is that many above the one asked for."""
        return Sampling(
            repetition_penalty=self.repetition_penalty,
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            seed=(self.seed + choice) % SEEDS,
        )


class ChatRequest(AnswerRequest):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)

    @property
    def prompts(self) -> list[Prompt]:
        """One conversation."""
        return [[message.plain for message in self.messages]]


class CompletionRequest(AnswerRequest):
    """`POST /v1/completions`."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)]

    @property
    def prompts(self) -> list[Prompt]:
        """Texts or token ids."""
        return list(self.prompt)


def read_request(kind: type[Asked], body: bytes) -> Asked:
    """The request in a body, or what is wrong with it."""
    try:
        fields = json.loads(body, parse_constant=_no_constant)
        json.dumps(fields, ensure_ascii=False).encode()  # fails on half of a surrogate pair, as tokenizers would
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}", code="malformed_json") from error
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body must be a JSON object, got {_shown(fields)}")
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, idle in IDLE.items():
        if name in fields and not any(type(fields[name]) is type(value) and fields[name] == value for value in idle):
            raise ApiError(400, f"{name} is not supported; leave it out", param=name, code="unsupported_parameter")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"])
        found = "" if first["type"] == "missing" else f", got {_shown(first['input'])}"
        raise ApiError(400, f"{param}: {first['msg'][0].lower()}{first['msg'][1:]}{found}", param=param) from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _shown(value: Any) -> str:
    """A value as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
