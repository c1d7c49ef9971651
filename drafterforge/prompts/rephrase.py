"""The same requests in other words: two answers to choose from, a role to play, another language around them.

A router that reads the wording instead of the task fails on these. Train, val and test have wordings of their own,
and test has languages and roles that training never sees, so that nothing measured was memorised. Requests that carry
a text to summarize or translate keep every word of it: there, `language` asks in another language around it only.
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
    """The ways to rephrase."""
    return list(_KINDS)


def rephrase(
    messages: Sequence[dict[str, str]], kind: str, split: str, rng: random.Random, whole: bool = False
) -> list[dict[str, str]]:
    """The conversation with its last request in other words, drawn from the split's own wordings.

    Its content stays; `language` also translates how its sentences begin, outside of code, unless the request is to
    stay whole.
    """
    if kind not in _KINDS:
        raise ConfigError(f"no way {kind!r} to rephrase; type one of {', '.join(_KINDS)}")
    if split not in SPLITS:
        raise ConfigError(f"no split {split!r}; type one of {', '.join(SPLITS)}")
    places = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not places:
        raise ConfigError(f"nothing to rephrase: {len(messages)} messages, none of a user")
    found = [dict(message) for message in messages]
    way = _whole_in_language if whole and kind == "language" else _KINDS[kind]
    found[places[-1]]["content"] = way(found[places[-1]]["content"], split, rng)
    return found


def rephrased(prompts: Sequence[Prompt], kind: str, split: str, seed: int) -> list[Prompt]:
    """Every prompt in other words; its id, split and the seed decide which."""
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
                    whole=carries_text(prompt.domain),
                )
            ),
        )
        for prompt in prompts
    ]


def partly_rephrased(
    prompts: Sequence[Prompt], share: float, split: str, seed: int, ways: Sequence[str] | None = None
) -> list[Prompt]:
    """The prompts, in order; a share of them, evenly spaced, is rephrased, every kind (or of `ways`) in its turn."""
    ways, found = kinds() if ways is None else list(ways), []
    for place, prompt in enumerate(prompts):
        turn = int(share * place)
        if int(share * (place + 1)) > turn:
            found += rephrased([prompt], ways[turn % len(ways)], split, seed)
        else:
            found.append(prompt)
    return found


def _two_answers(text: str, split: str, rng: random.Random) -> str:
    return fill(rng.choice(TWO_ANSWERS[split]), {"prompt": text})


def _role(text: str, split: str, rng: random.Random) -> str:
    template = rng.choice(ROLE[split])
    return fill(template, {"prompt": text, "role": rng.choice(ROLES[split])})


def _language(text: str, split: str, rng: random.Random) -> str:
    language, template = cells(rng.choice(LANGUAGE[split]))
    return fill(template, {"prompt": translated(text, language)})


def _whole_in_language(text: str, split: str, rng: random.Random) -> str:
    return fill(cells(rng.choice(LANGUAGE[split]))[1], {"prompt": text})


def translated(text: str, language: str) -> str:
    """The text with the first words of its requests in another language; code stays as it is."""
    parts = _CODE.split(text)
    prose = [_OPENING.sub(lambda found: OPENINGS[found[1]][language], part) for part in parts[::2]]
    parts[::2] = prose
    return "".join(parts)


_KINDS = {"two_answers": _two_answers, "role": _role, "language": _language}
