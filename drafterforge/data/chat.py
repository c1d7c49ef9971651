"""Encodes messages as token ids, with a mask of the tokens that the target itself would emit.

A tokenizer without a chat template uses `PLAIN_TEMPLATE`. The code works with any template: it renders prefixes of the
conversation and compares the texts to locate each message.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from drafterforge.errors import ChatTemplateError, shorten

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # decoded from an incomplete character
_TODAY = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")

Message = dict[str, str]

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n' }}"
    "{% else %}{{ 'Assistant: ' + message['content'] + (eos_token or '') + '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def prompt_ids(tokenizer: Any, messages: Sequence[Message], *, date: datetime.date | None = None) -> list[int]:
    """Returns the ids after which the target starts its answer.

    date: for templates that print it; None: today.
    """
    return _encode(tokenizer, _render(tokenizer, messages, True, date))


def conversation_ids(
    tokenizer: Any, messages: Sequence[Message], *, date: datetime.date | None = None
) -> tuple[list[int], list[int]]:
    """Returns ids and loss mask of a conversation; 1 marks what the target emits, end of turn included.

    All assistant turns are marked. If the template rewrites earlier turns (for example, strips reasoning from the
    history), the ids are those the target sees at the last turn, and only that turn is marked. Messages after the last
    assistant turn are dropped.
    """
    first_user = [message["role"] for message in messages].index("user")
    answered = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > first_user]
    if not answered:
        ids = prompt_ids(tokenizer, messages, date=date)
        return ids, [0] * len(ids)
    messages = list(messages[: answered[-1] + 1])
    text = _render(tokenizer, messages, False, date)
    spans = [_span(tokenizer, text, messages, i, date) for i in answered]
    if None in spans:
        spans = spans[-1:]
    if spans[-1] is None:  # the history is rendered without the generation prompt: append the answer to the prompt
        prompt = _render(tokenizer, messages[:-1], True, date)
        text = prompt + messages[-1]["content"].strip() + (tokenizer.eos_token or "")
        spans = [(len(prompt), len(text))]
    return _encode_spans(tokenizer, text, spans)


def extend_turn(
    tokenizer: Any,
    ids: Sequence[int],
    messages: Sequence[Message],
    *,
    date: datetime.date | None = None,
) -> list[int]:
    """Returns the ids of the next turn's prompt; they begin with `ids`, unless the template rewrites history.

    ids: the last turn's prompt and the sampled answer.  messages: the conversation with that answer as its last
    assistant message, then the next user message.
    """
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    text = _render(tokenizer, messages, True, date)
    before = _render(tokenizer, messages[:last], True, date)
    answer = messages[last]["content"]
    start = len(text) - len(text[len(before) :].lstrip()) if answer.strip() else len(before)
    if not text.startswith(before) or not text.startswith(answer.strip(), start):
        return _encode(tokenizer, text)
    end = start + len(answer.strip())
    if len(ids) and ids[-1] in _special_ids(tokenizer):
        end = _end_of_turn(tokenizer, text, end)  # the target emitted it
    elif text.startswith(space := answer[len(answer.rstrip()) :], end):
        end += len(space)
    return list(ids) + _encode_from(tokenizer, text, end)


def answer_ids(tokenizer: Any, prompt: Sequence[int], text: str) -> Iterator[list[int]]:
    """Yields ids that decode to an answer's text behind its prompt: tokenized in context, and alone.

    A text that a server cut inside a character has none.
    """
    if REPLACEMENT in text:
        return
    prompt = list(prompt)
    before = _decode(tokenizer, prompt)
    in_context = _encode(tokenizer, before + text)
    candidates = [in_context[len(prompt) :]] if in_context[: len(prompt)] == prompt else []
    for ids in [*candidates, _encode(tokenizer, text)]:
        if _decode(tokenizer, prompt + ids) == before + text:
            yield ids


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _render(tokenizer: Any, messages: Sequence[Message], generate: bool, date: datetime.date | None) -> str:
    template = tokenizer.get_chat_template() if tokenizer.chat_template else PLAIN_TEMPLATE
    if date is not None:
        template = _TODAY.sub(lambda match: repr(date.strftime(match[2])), template)
    try:
        text = tokenizer.apply_chat_template(
            list(messages),
            chat_template=template,
            tokenize=False,
            add_generation_prompt=generate,
        )
        text.encode()  # fails on half of a surrogate pair, which a forged template or special token may hold
        return text
    except Exception as error:  # a template may raise anything
        roles = ", ".join(str(message.get("role", "none")) for message in messages) or "none"
        raise ChatTemplateError(
            f"the target's chat template refuses the roles ({shorten(roles)}): {shorten(error, 200)}; "
            "give messages that it accepts, for example one user message"
        ) from error


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _encode_from(tokenizer: Any, text: str, start: int) -> list[int]:
    """Returns the ids of text[start:], tokenized in context unless a token crosses `start`."""
    head, ids = _encode(tokenizer, text[:start]), _encode(tokenizer, text)
    if ids[: len(head)] == head:
        return ids[len(head) :]
    return _encode(tokenizer, text[start:])


def _encode_spans(tokenizer: Any, text: str, spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Returns ids and loss mask of a text; the spans are 1, and no token crosses their edges."""
    ids: list[int] = []
    mask: list[int] = []
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    for number, (start, end) in enumerate(pairwise(edges)):
        part = _encode_from(tokenizer, text[:end], start)
        ids += part
        mask += [number % 2] * len(part)
    return ids, mask


def _span(
    tokenizer: Any, text: str, messages: list[Message], index: int, date: datetime.date | None
) -> tuple[int, int] | None:
    """Returns the span of `text` that the target emitted as message `index`; None if the template rewrote it."""
    before = _render(tokenizer, messages[:index], True, date)
    until = _render(tokenizer, messages[: index + 1], False, date)
    if not text.startswith(before) or not text.startswith(until) or len(before) >= len(until):
        return None
    content = messages[index]["content"].strip()
    start = until.rfind(content, len(before))
    return len(before), _end_of_turn(tokenizer, until, start + len(content) if start >= 0 else len(before))


def _end_of_turn(tokenizer: Any, text: str, start: int) -> int:
    """Returns the end of the first special token after `start`, or `start`."""
    ends = []
    for token in _special_tokens(tokenizer):
        first = text.find(token, start)
        if first >= 0:
            ends.append((first, -len(token), first + len(token)))
    return min(ends)[2] if ends else start


def _special_tokens(tokenizer: Any) -> set[str]:
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return added | {str(token) for token in tokenizer.all_special_tokens}


def _special_ids(tokenizer: Any) -> set[int]:
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)
