from __future__ import annotations

import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from functools import cache
from hashlib import sha256
from itertools import islice

import pytest

from drafterforge.data.grammars import (
    GRAMMARS,
    Draw,
    draw_prompts,
    medical,
    python,
    science,
    split_of,
    sql,
    summarization,
    translation,
)
from drafterforge.data.grammars.base import SPLITS, Grammar, an, fill, singular
from drafterforge.errors import ConfigError

DOMAINS = sorted(GRAMMARS)
CODE_BLOCK = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
SLOT = re.compile(r"\{[a-z_.:0-9]*\}")
SPACING = re.compile(r"\w  \w|\w\.\.(?!\.)|\w [,.?](\s|$)")
A_VOWEL = re.compile(r"\b[Aa] (?!at |one|eu|and )([aeio][a-z]|(8|11|18|80)\b)")


@cache
def some_draws(domain: str, split: str) -> list[Draw]:
    return draw_prompts(domain, split, 4600 if split == "train" else 200, seed=0)


def digest(domain: str, seed: int = 3) -> str:
    draws = draw_prompts(domain, "train", 300, seed)
    return sha256("\0".join(f"{draw.task}\t{draw.text}" for draw in draws).encode()).hexdigest()


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("domain", DOMAINS)
def test_grammar_gives_5000_distinct_prompts_over_1000_tasks(domain):
    texts = {draw.text for split in SPLITS for draw in some_draws(domain, split)}
    assert len(texts) == 5000  # so the splits share no text either
    assert sum(map(len, GRAMMARS[domain].tasks.values())) >= 1000


@pytest.mark.parametrize("domain", DOMAINS)
def test_splits_share_no_task(domain):
    for split in SPLITS:
        assert {split_of(draw.task) for draw in some_draws(domain, split)} == {split}


def test_split_of_is_nine_to_half_to_half():
    shares = [split_of(f"task {i}") for i in range(20_000)]
    assert [round(shares.count(split) / 20_000, 2) for split in SPLITS] == [0.9, 0.05, 0.05]


def test_draws_are_the_same_in_another_process_with_another_hash_seed():
    code = "import test_grammars as t; print(*[t.digest(domain) for domain in t.DOMAINS])"
    env = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(
        [os.path.dirname(__file__), *sys.path])}  # fmt: skip
    other = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert other.stdout.split() == [digest(domain) for domain in DOMAINS], other.stderr


@pytest.mark.parametrize("domain", DOMAINS)
def test_larger_count_extends_the_smaller_and_another_seed_differs(domain):
    draws = draw_prompts(domain, "train", 400, seed=5)
    assert draw_prompts(domain, "train", 90, seed=5) == draws[:90]
    assert draw_prompts(domain, "train", 90, seed=6) != draws[:90]


@pytest.mark.parametrize("domain", DOMAINS)
def test_draws_visit_every_task_before_any_twice(domain):
    num_tasks = len(GRAMMARS[domain].tasks["train"])
    assert len({draw.task for draw in some_draws(domain, "train")[:num_tasks]}) == num_tasks


@pytest.mark.parametrize("domain", DOMAINS)
def test_texts_are_whole_sentences_without_open_slots(domain):
    for draw in some_draws(domain, "train"):
        prose = CODE_BLOCK.sub("code", draw.text)
        assert not SLOT.search(prose), draw
        if domain != "translation":  # where `a` is a word of other languages, and French puts a space before `?`
            assert not SPACING.search(prose), draw
            assert not A_VOWEL.search(prose), draw
        assert draw.text == draw.text.strip(), draw
        assert 2 < len(draw.text.split()) < 200, draw


def test_every_sql_query_runs_on_its_schema():
    for line in sql.SCHEMAS:
        tables = {table.row: table for table in map(sql.parse_table, line.split(" | ")[1:])}
        database = sqlite3.connect(":memory:")
        database.executescript("".join(map(sql.create_table, tables.values())))
        for question, bound in sql.bindings(tables):
            if question.query and "EXTRACT" not in question.query:  # which SQLite lacks
                values = bound | sql.drawn_values(bound, random.Random(0))
                database.execute(question.query.format_map(values))


def test_every_python_function_compiles_and_every_mistake_changes_it():
    for function in (*python.plain_functions(), *python.record_functions()):
        for code in filter(None, (function.code, function.wrong_code)):
            compile(code.removeprefix("```python\n").removesuffix("```"), function.name, "exec")
        assert not function.code or function.code != function.wrong_code


def test_every_sentence_to_translate_has_the_same_slots_in_every_language():
    for sentence in (*translation.THING_SENTENCES, *translation.ACTION_SENTENCES, *translation.PLACE_SENTENCES):
        slots = {language: {slot.lower() for slot in SLOT.findall(text.lower())} for language, text in sentence.items()}
        assert slots.keys() == translation.LANGUAGES.keys() and set(map(frozenset, slots.values())) == {
            frozenset(slots["en"])
        }


def test_a_checked_translation_is_wrong_in_one_word_at_most():
    sentence, words = translation.THING_SENTENCES[0], translation.THINGS
    seen = {translation.write_check(sentence, words[0], words, random.Random(seed)) for seed in range(200)}
    assert any("den Schlüssel" in text for text in seen) and any("Schlüssel" not in text for text in seen)
    assert all(words[0]["en"] in text for text in seen)


@pytest.mark.parametrize("genre", summarization.GENRES)
def test_a_passage_to_summarize_tells_its_facts(genre):
    shown = summarization.GENRES[genre]
    tables = [
        [dict(zip(head.split(" | "), row.split(" | "), strict=True)) for row in rows] for head, *rows in shown.facts
    ]
    for place in range(max(map(len, tables))):
        slots = {key: cell for table in tables for key, cell in table[place % len(table)].items()}
        text = summarization.write(shown, slots, random.Random(place))
        known = [max(SLOT.split(cell), key=len).strip() for cell in slots.values()]
        told = [piece for piece in known if piece.lower() in text.lower()]
        assert 2 * len(told) >= len(known) and 50 < len(text.split()) < 190, (place, known, text)


def test_a_quiz_has_its_answer_among_four_options_once():
    for table, (asks, *facts) in science.FACTS.items():
        names = [fact.partition(" | ")[0] for fact in facts]
        for seed, fact in enumerate(facts):
            name, _, what = fact.partition(" | ")
            text = science.write_quiz(asks, table, name, what, names, random.Random(seed)).lower()
            assert what.lower() in text and text.count(name.lower()) <= what.lower().count(name.lower()) + 1


def test_a_lab_value_lies_outside_its_reference_on_the_side_it_is_said_to():
    for test, _, span, low, high in (line.split(" | ") for line in medical.LABS):
        ends = [float(end) for end in re.findall(r"[\d.]+", span)]
        if not span.startswith(("below", "oxygen")):
            assert max(map(float, medical.drawn_between(low))) < ends[0], test
        if not span.startswith("above") and test != "oxygen saturation":
            assert min(map(float, medical.drawn_between(high))) > ends[-1], test


def test_two_thousand_prompts_take_less_than_a_second():
    start = time.perf_counter()
    assert len(list(islice(Grammar("sql", GRAMMARS["sql"]._tasks).draws("train", 0), 2000))) == 2000
    assert time.perf_counter() - start < 1.0


def test_asking_for_too_much_says_how_many_there_are(monkeypatch):
    writers = {f"task {i}": lambda rng, i=i: f"{i} {rng.choice('ab')}" for i in range(30)}
    monkeypatch.setitem(GRAMMARS, "tiny", Grammar("tiny", writers.items))
    most = 2 * sum(split_of(task) == "train" for task in writers)
    with pytest.raises(ConfigError) as error:
        draw_prompts("tiny", "train", 500, seed=0)
    assert str(error.value).splitlines()[0] == (
        f"the tiny grammar has only {most} distinct train prompts, 500 were asked; type data.num_train={most}"
    )
    assert len(draw_prompts("tiny", "train", most, seed=0)) == most


@pytest.mark.parametrize("domain, split", [("physics", "train"), ("sql", "dev")])
def test_unknown_domain_or_split_names_the_known_ones(domain, split):
    with pytest.raises(ConfigError, match="type one of"):
        draw_prompts(domain, split, 1, seed=0)


def test_words_and_slots_are_filled_as_english():
    assert [an(noun) for noun in ("apple", "user", "hour", "engineer")] == [
        "an apple", "a user", "an hour", "an engineer"]  # fmt: skip
    assert [singular(noun) for noun in ("cities", "movies", "matches", "loans")] == [
        "city", "movie", "match", "loan"]  # fmt: skip
    rng = random.Random(0)
    assert fill(rng, "{a}+{b}={c}", a=[2], b=range(3, 4), c=lambda a, b: a + b) == "2+3=5"
