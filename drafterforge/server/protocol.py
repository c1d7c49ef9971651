"""Requests of OpenAI's API as checked pydantic models.

Fields that are not supported are refused by name if they would change the answer; other unknown fields are ignored.
`top_k`, `min_p`, `repetition_penalty` and `return_token_ids` are extensions, as in vLLM; OpenAI's client sends them in
`extra_body`.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from drafterforge.runtime.engine import Prompt
from drafterforge.runtime.sampling import Sampling
from drafterforge.server.failures import ApiError

MAX_STOPS, MAX_STOP_LENGTH = 4, 256
SEEDS = 2**64
COUNTS = 2**31  # above every count of a request
MAX_QUOTED_CHARS = 60  # of a wrong value in an error
NEUTRAL_VALUES: dict[str, tuple] = {  # fields that are not supported, with the values that have no effect
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
    # extensions of vLLM and other servers
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "ebnf": (),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "min_tokens": (0,),
    "regex": (),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
}
RequestT = TypeVar("RequestT", bound="AnswerRequest")


def _invalid(message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid", "{words}", {"words": message})


def _stops(value: Any) -> Any:
    """A list of stop strings, which may be given as a single string."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _invalid("expected a string or a list of strings")
    if len(stops) > MAX_STOPS or any(not 0 < len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise _invalid(f"expected at most {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters")
    return stops


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def _prompts(value: Any) -> list[str | list[int]]:
    """A list of prompts, each text or token ids; a single prompt may be given without a list."""
    prompts = [value] if isinstance(value, str) or (value and _is_token_ids(value)) else value
    is_list = isinstance(prompts, list) and len(prompts) > 0
    if not is_list or not (all(isinstance(prompt, str) for prompt in prompts) or all(map(_is_token_ids, prompts))):
        raise _invalid("expected text, a list of texts, token ids, or a list of lists of token ids")
    return prompts


def _parts(value: Any) -> Any:
    """The parts of a message's content, which may be given as text."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _nothing(value: Any) -> None:
    """Validates a field of a message that is not supported: ignoring it would change what the target reads."""
    if value not in (None, []):
        raise _invalid("not supported; leave it out")


class Fields(BaseModel):
    """Strict fields, without conversions: a number in quotes is a mistake."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class TextPart(Fields):
    """A part of a message's content; only text is supported."""

    type: Literal["text"]
    text: str


class Message(Fields):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart], FailFast(), BeforeValidator(_parts)]
    tool_calls: Annotated[None, BeforeValidator(_nothing)] = None
    function_call: Annotated[None, BeforeValidator(_nothing)] = None
    audio: Annotated[None, BeforeValidator(_nothing)] = None

    @property
    def for_template(self) -> dict[str, str]:
        """The message as chat templates expect it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "".join(part.text for part in self.content)}


class StreamOptions(Fields):
    """Options of a stream."""

    include_usage: bool = False


class AnswerRequest(Fields, ABC):
    """The fields that both kinds of requests have."""

    model: str
    n: int = Field(1, ge=1, lt=COUNTS)
    max_tokens: int | None = Field(None, ge=1, lt=COUNTS)
    max_completion_tokens: int | None = Field(None, ge=1, lt=COUNTS)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=COUNTS)  # 0 and -1: all
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    seed: int = Field(default_factory=lambda: secrets.randbelow(2**63), ge=-(2**63), lt=SEEDS)
    stop: Annotated[list[str], BeforeValidator(_stops)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False

    @property
    @abstractmethod
    def prompts(self) -> list[Prompt]:
        """The prompts, each of which is answered `n` times."""

    @property
    def limit(self) -> tuple[str, int | None]:
        """The field that limits the length of an answer, and its value in tokens; None: the server's limit."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    def sampling(self, choice: int) -> Sampling:
        """Sampling of the answer number `choice` to a prompt, whose seed is `seed + choice`."""
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

    messages: Annotated[list[Message], FailFast()] = Field(min_length=1)  # an error takes a thousand times its entry

    @property
    def prompts(self) -> list[Prompt]:
        return [[message.for_template for message in self.messages]]


class CompletionRequest(AnswerRequest):
    """`POST /v1/completions`."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)]

    @property
    def prompts(self) -> list[Prompt]:
        return list(self.prompt)


def read_request(kind: type[RequestT], body: bytes) -> RequestT:
    """The request in a body; ApiError if it is malformed or not supported."""
    try:
        fields = json.loads(body, parse_constant=_refuse_constant)
        json.dumps(fields, ensure_ascii=False).encode()  # fails on half of a surrogate pair, as tokenizers would
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="malformed_json") from error
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body must be a JSON object, got {_quote(fields)}")
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, neutral in NEUTRAL_VALUES.items():
        if name in fields and not any(type(fields[name]) is type(value) and fields[name] == value for value in neutral):
            raise ApiError(400, f"{name} is not supported; leave it out", param=name, code="unsupported_parameter")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"])
        received = "" if first["type"] == "missing" else f", got {_quote(first['input'])}"
        raise ApiError(400, f"{param}: {first['msg'][0].lower()}{first['msg'][1:]}{received}", param=param) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _quote(value: Any) -> str:
    """A value as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}..."
