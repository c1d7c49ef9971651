"""Rephrases requests in three ways: ask for two answers, assign a role, use another language.

They test whether a router recognises the task, not the wording. Train, val and test use different wordings, and test
also other languages and roles, so memorised wordings do not help. If a request contains a text to summarize or
translate, that text stays: `language` then changes only the words around it.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from pathlib import Path

from drafterforge.errors import ConfigError
from drafterforge.prompts.files import read_yaml
from drafterforge.prompts.functions import cells
from drafterforge.prompts.grammar import SPLITS, carries_text
from drafterforge.prompts.prompt import Prompt
from drafterforge.prompts.templates import fill

_WORDINGS = read_yaml(Path(__file__).with_name("rephrase.yaml"))
TWO_ANSWERS, ROLE, ROLES, LANGUAGE = (_WORDINGS[name] for name in ("two_answers", "role", "roles", "language"))
LANGUAGES = ("de", "fr", "es", "it", "pt", "nl")
OPENINGS = {row[0]: dict(zip(LANGUAGES, row[1:], strict=True)) for row in map(cells, _WORDINGS["openings"])}
_OPENING = re.compile(rf"(?:^|(?<=[.!?:]\s)|(?<=\n))({'|'.join(OPENINGS)})(?=\s)")
_CODE = re.compile(r"(```.*?(?:```|\Z))", re.DOTALL)


def kinds() -> list[str]:
    return list(_KINDS)


def rephrase(
    messages: Sequence[dict[str, str]], kind: str, split: str, rng: random.Random, keep_text: bool = False
) -> list[dict[str, str]]:
    """The conversation with its last user message rephrased, in a random wording of the split.

    `language` also translates the beginnings of sentences outside code, unless `keep_text` is set.
    """
    if kind not in _KINDS:
        raise ConfigError(f"no way {kind!r} to rephrase; type one of {', '.join(_KINDS)}")
    if split not in SPLITS:
        raise ConfigError(f"no split {split!r}; type one of {', '.join(SPLITS)}")
    user_turns = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not user_turns:
        raise ConfigError(f"nothing to rephrase: none of {len(messages)} messages is of a user")
    conversation = [dict(message) for message in messages]
    rewrite = _ask_in_language if keep_text and kind == "language" else _KINDS[kind]
    conversation[user_turns[-1]]["content"] = rewrite(conversation[user_turns[-1]]["content"], split, rng)
    return conversation


def rephrase_prompts(prompts: Sequence[Prompt], kind: str, split: str, seed: int) -> list[Prompt]:
    """All prompts rephrased; the wording depends on the prompt's id, the kind, the split and the seed."""
    return [
        dataclasses.replace(
            prompt,
            id=f"{prompt.id}/{kind}",
            messages=tuple(
                rephrase(
                    prompt.messages,
                    kind,
                    split,
                    random.Random(f"{seed}/{split}/{kind}/{prompt.id}"),
                    keep_text=carries_text(prompt.domain),
                )
            ),
        )
        for prompt in prompts
    ]


def rephrase_share(
    prompts: Sequence[Prompt], share: float, split: str, seed: int, kinds_used: Sequence[str] | None = None
) -> list[Prompt]:
    """The prompts in order, an evenly spaced share of them rephrased.  ways: kinds to cycle through; None: all."""
    kinds_used, mixed = kinds() if kinds_used is None else list(kinds_used), []
    for index, prompt in enumerate(prompts):
        number = int(share * index)
        if int(share * (index + 1)) > number:
            mixed += rephrase_prompts([prompt], kinds_used[number % len(kinds_used)], split, seed)
        else:
            mixed.append(prompt)
    return mixed


def _two_answers(text: str, split: str, rng: random.Random) -> str:
    return fill(rng.choice(TWO_ANSWERS[split]), {"prompt": text})


def _role(text: str, split: str, rng: random.Random) -> str:
    template = rng.choice(ROLE[split])
    return fill(template, {"prompt": text, "role": rng.choice(ROLES[split])})


def _language(text: str, split: str, rng: random.Random) -> str:
    language, template = cells(rng.choice(LANGUAGE[split]))
    return fill(template, {"prompt": translate_openings(text, language)})


def _ask_in_language(text: str, split: str, rng: random.Random) -> str:
    return fill(cells(rng.choice(LANGUAGE[split]))[1], {"prompt": text})


def translate_openings(text: str, language: str) -> str:
    """Translate the first words of the text's sentences, except in code."""
    parts = _CODE.split(text)
    prose = [_OPENING.sub(lambda match: OPENINGS[match[1]][language], part) for part in parts[::2]]
    parts[::2] = prose
    return "".join(parts)


_KINDS = {"two_answers": _two_answers, "role": _role, "language": _language}
