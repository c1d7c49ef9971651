"""Rephrased requests keep the original request, and training and test share no wording."""

from __future__ import annotations

import random
import re

import pytest

from drafterforge.errors import ConfigError
from drafterforge.prompts.prompt import Prompt
from drafterforge.prompts.rephrase import (
    LANGUAGE,
    LANGUAGES,
    OPENINGS,
    ROLE,
    ROLES,
    SPLITS,
    TWO_ANSWERS,
    kinds,
    rephrase,
    rephrase_prompts,
    rephrase_share,
    translate_openings,
)

WORDINGS = {"two_answers": TWO_ANSWERS, "role": ROLE, "language": LANGUAGE}
TEXT = (
    "Write a function {add} for me. Explain it.\n\n```python\n# Write nothing here\nShow me\n```\nIs {0} 100 % right?"
)


def prompts(count: int) -> list[Prompt]:
    messages = ({"role": "user", "content": TEXT},)
    return [Prompt(f"sql-{n}", "sql", f"task {n}", messages, "test") for n in range(count)]


def rephrased_text(kind: str, split: str, seed: int) -> str:
    return rephrase([{"role": "user", "content": TEXT}], kind, split, random.Random(seed))[0]["content"]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", ["two_answers", "role"])
def test_a_rephrased_request_contains_the_original(kind, split):
    for seed in range(40):
        text = rephrased_text(kind, split, seed)
        assert TEXT in text and len(text) > len(TEXT) + 10


@pytest.mark.parametrize("split", SPLITS)
def test_translation_changes_only_the_first_words_of_sentences_and_no_code(split):
    opening = {text for row in OPENINGS.values() for text in row.values()}
    for seed in range(40):
        rephrased = rephrased_text("language", split, seed)
        assert TEXT.split("```")[1] in rephrased and "a function {add} for me. " in rephrased
        assert rephrased.endswith("Is {0} 100 % right?") or "Is {0} 100 % right?\n\n" in rephrased
        assert "Write a" not in rephrased and any(f"{text} a function" in rephrased for text in opening)


@pytest.mark.parametrize("domain", ["summarization", "translation"])
def test_every_rephrasing_keeps_the_text_of_a_request(domain):
    messages = ({"role": "user", "content": "Translate into Dutch.\n\nPlease wait. What is that?"},)
    for kind in kinds():
        for prompt in rephrase_prompts(
            [Prompt(f"{n}", domain, "task", messages, "test") for n in range(30)], kind, "train", 0
        ):
            assert messages[0]["content"] in prompt.messages[0]["content"]


def test_only_the_beginnings_of_sentences_are_translated():
    assert translate_openings("Write this. Write that, then Write more.", "de") == (
        "Schreibe this. Schreibe that, then Write more."
    )
    assert translate_openings("Hello!\nPlease help. Whatever.", "fr") == "Hello!\nS'il te plaît, help. Whatever."
    assert translate_openings("```\nWrite x\n```\nWrite y", "es") == "```\nWrite x\n```\nEscribe y"
    assert translate_openings("Writer's block", "it") == "Writer's block"


@pytest.mark.parametrize("kind", kinds())
def test_training_and_test_share_no_wording(kind):
    parts = [{re.sub(r"\W+", " ", wording).lower().strip() for wording in WORDINGS[kind][split]} for split in SPLITS]
    assert sum(map(len, parts)) == len(set.union(*parts))
    roles = [role for split in SPLITS for role in ROLES[split]]
    assert len(roles) == len(set(roles))


def test_the_test_has_languages_that_training_never_sees():
    used = {split: {wording.split(" | ")[0] for wording in LANGUAGE[split]} for split in SPLITS}
    assert used["test"] - used["train"] - used["val"] and set.union(*used.values()) == set(LANGUAGES)


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("split", SPLITS)
def test_every_wording_contains_the_request_once_and_differs_from_all_others(kind, split):
    wordings = WORDINGS[kind][split]
    assert len(wordings) >= (4 if split == "val" else 8)
    assert all(wording.count("{prompt}") == 1 for wording in wordings)
    assert all(wording.count("{role}") == (kind == "role") for wording in wordings)
    requests = {wording.format(prompt="THIS", role="a cook") for wording in wordings}
    assert len(requests) == len(wordings)


def test_the_prompt_and_the_seed_decide_the_wording():
    some = prompts(12)
    first, again, other_seed = (rephrase_prompts(some, "role", "train", seed) for seed in (0, 0, 1))
    assert first == again and first != other_seed
    assert rephrase_prompts(some[3:4], "role", "train", 0) == first[3:4]
    assert len({prompt.messages[0]["content"] for prompt in first}) > 8
    assert [prompt.id for prompt in first] == [f"{prompt.id}/role" for prompt in some]
    assert all((a.domain, a.task) == (b.domain, b.task) for a, b in zip(first, some, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_a_share_of_the_prompts_is_rephrased_with_every_kind_in_turn(share):
    some = prompts(48)
    rephrased = rephrase_share(some, share, "train", 0)
    changed = [prompt.id.split("/")[1] for prompt in rephrased if "/" in prompt.id]
    assert len(changed) == round(share * 48)
    assert all(changed.count(kind) == len(changed) / 3 for kind in kinds())
    assert [prompt.id.split("/")[0] for prompt in rephrased] == [prompt.id for prompt in some]


def test_only_the_last_request_of_a_conversation_changes():
    talk = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Sum 1 and 2."},
    ]
    messages = rephrase(talk, "two_answers", "val", random.Random(0))
    assert messages[:3] == talk[:3] and messages[3]["content"] != talk[3]["content"] == "Sum 1 and 2."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("slang", "train"), "no way 'slang' to rephrase; type one of two_answers, role, language"),
        (("role", "dev"), "no split 'dev'; type one of train, val, test"),
    ],
)
def test_an_unknown_kind_or_split_is_one_line(arguments, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        rephrase([{"role": "user", "content": "Hi"}], *arguments, random.Random(0))
    with pytest.raises(ConfigError, match="nothing to rephrase"):
        rephrase([{"role": "system", "content": "Hi"}], "role", "train", random.Random(0))
