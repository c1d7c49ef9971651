from __future__ import annotations

import os
import random
import re
import sqlite3
import subprocess
import sys
from functools import cache
from hashlib import sha256

import pytest

from drafterforge.errors import ConfigError
from drafterforge.prompts import databases
from drafterforge.prompts import grammar as grammar_module
from drafterforge.prompts.domains import domains, grammar_path
from drafterforge.prompts.files import read_grammar
from drafterforge.prompts.functions import cells, spread
from drafterforge.prompts.grammar import SPLITS, Draw, Grammar, draw_prompts, grammar, split_of
from drafterforge.prompts.templates import fill
from drafterforge.prompts.words import an, singular

DOMAINS = sorted(domains())
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
    assert len(texts) == 5000  # so the splits share no text
    assert sum(map(len, grammar(domain).tasks.values())) >= 1000


@pytest.mark.parametrize("domain", DOMAINS)
def test_splits_share_no_task(domain):
    for split in SPLITS:
        assert {split_of(draw.task) for draw in some_draws(domain, split)} == {split}


def test_splits_have_90_5_and_5_percent_of_the_tasks():
    shares = [split_of(f"task {i}") for i in range(20_000)]
    assert [round(shares.count(split) / 20_000, 2) for split in SPLITS] == [0.9, 0.05, 0.05]


def test_draws_are_the_same_in_another_process_with_another_hash_seed():
    code = "import test_grammars as t; print(*[t.digest(domain) for domain in t.DOMAINS])"
    env = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(
        [os.path.dirname(__file__), *sys.path])}  # fmt: skip
    process = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert process.stdout.split() == [digest(domain) for domain in DOMAINS], process.stderr


@pytest.mark.parametrize("domain", DOMAINS)
def test_larger_count_extends_the_smaller_and_another_seed_differs(domain):
    draws = draw_prompts(domain, "train", 400, seed=5)
    assert draw_prompts(domain, "train", 90, seed=5) == draws[:90]
    assert draw_prompts(domain, "train", 90, seed=6) != draws[:90]


@pytest.mark.parametrize("domain", DOMAINS)
def test_draws_visit_every_task_before_any_twice(domain):
    num_tasks = len(grammar(domain).tasks["train"])
    assert len({draw.task for draw in some_draws(domain, "train")[:num_tasks]}) == num_tasks


@pytest.mark.parametrize("domain", DOMAINS)
def test_texts_are_whole_sentences_without_open_slots(domain):
    for draw in some_draws(domain, "train"):
        prose = CODE_BLOCK.sub("code", draw.text)
        assert not SLOT.search(prose), draw
        if domain != "translation":  # `a` is a word of other languages, and French puts a space before `?`
            assert not SPACING.search(prose), draw
            assert not A_VOWEL.search(prose), draw
        assert draw.text == draw.text.strip(), draw
        assert 2 < len(draw.text.split()) < 200, draw


def lists(domain: str) -> dict:
    return read_grammar(grammar_path(domain))["lists"]


def test_every_sql_query_runs_on_its_schema():
    sql = lists("sql")
    values = {"value": "x", "n": 3, "number": 5, "percent": 8, "day": "2020-01-01", "year": 2020, "letter": "A"}
    for line in sql["databases"]:
        database = databases.database(line)
        connection = sqlite3.connect(":memory:")
        connection.executescript("".join(map(databases.create_table, database.fields["tables"])))
        questions = databases.questions(database, sql["one_table"], sql["two_tables"])
        assert len(questions) > 40
        for question in questions:
            if question["query"] and "EXTRACT" not in question["query"]:  # SQLite has no EXTRACT
                connection.execute(fill(question["query"], question | values))


def test_every_mistake_changes_a_query():
    sql = lists("sql")
    questions = databases.questions(databases.database(sql["databases"][0]), sql["one_table"], sql["two_tables"])
    values = {"value": "x", "n": 3, "number": 5, "percent": 8, "day": "2020-01-01", "year": 2020, "letter": "A"}
    queries = [fill(question["query"], question | values) for question in questions if question["query"]]
    seen = set()
    for seed, query in enumerate(queries * 3):
        wrong, complaint = databases.broken(random.Random(seed), query, sql["mistakes"])
        assert wrong != query
        seen.add(complaint)
    assert len(seen) > 5


def test_every_python_function_compiles_and_every_mistake_changes_it():
    python = lists("python")
    names = {cells(function)[0].split("(")[0] for function in python["functions"]}
    assert python["code"].keys() <= names
    for code in python["code"].values():
        assert code["body"] != code["wrong"]
    blocks = [
        block.removeprefix("```python\n").removesuffix("```")
        for draw in some_draws("python", "train")
        if draw.task.startswith("function: ")
        for block in re.findall(r"```python\n.*?```", draw.text, re.DOTALL)
        if '"""' not in block  # a function to complete
    ]
    assert len(blocks) > 200
    for block in blocks:
        compile(block, "block", "exec")


def test_every_sentence_to_translate_has_the_same_slots_in_every_language():
    translation = lists("translation")
    for name in ("thing_sentences", "action_sentences", "location_sentences"):
        for sentence in translation[name]:
            slots = [frozenset(SLOT.findall(text.lower())) for text in cells(sentence)]
            assert len(slots) == len(translation["languages"]) and len(set(slots)) == 1, sentence


def test_a_checked_translation_is_wrong_in_one_word_at_most():
    write = grammar("translation").writers["sentence: I cannot find the key."]
    texts = {text for text in (write(random.Random(seed)) for seed in range(4000)) if "homework" in text}
    german = [text for text in texts if "German" in text]
    assert any("den Schlüssel" in text for text in german) and any("Schlüssel" not in text for text in german)
    assert all("the key" in text for text in texts)


SUMMARIES = [family["task"].partition(":")[0] for family in read_grammar(grammar_path("summarization"))["tasks"]]


@pytest.mark.parametrize("genre", SUMMARIES)
def test_a_passage_to_summarize_contains_its_facts(genre):
    content = read_grammar(grammar_path("summarization"))
    family = next(family for family in content["tasks"] if family["task"].startswith(f"{genre}:"))
    tables = [[dict(zip(cells(head), cells(row), strict=True)) for row in content["lists"][name]]
              for head, name in family["for"].items()]  # fmt: skip
    for row in range(max(map(len, tables))):
        slots = {key: cell for table in tables for key, cell in table[row % len(table)].items()}
        text = grammar("summarization").writers[fill(family["task"], slots)](random.Random(row))
        facts = [max(SLOT.split(cell), key=len).strip() for cell in slots.values()]
        facts_in_text = [piece for piece in facts if piece.lower() in text.lower()]
        assert 2 * len(facts_in_text) >= len(facts) and 50 < len(text.split()) < 230, (row, facts, text)


def test_a_quiz_has_its_answer_among_four_options_once():
    for table, facts in lists("science")["facts"].items():
        for seed, row in enumerate(facts["rows"]):
            name, fact = cells(row)
            text = grammar("science").writers[f"quiz, {table}: {name}"](random.Random(seed)).lower()
            assert fact.lower() in text and text.count(name.lower()) <= fact.lower().count(name.lower()) + 1


def test_a_lab_value_lies_outside_its_reference_on_the_stated_side():
    for test, _, span, low, high in map(cells, lists("medical")["labs"]):
        ends = [float(end) for end in re.findall(r"[\d.]+", span)]
        if not span.startswith(("below", "oxygen")):
            assert max(map(float, spread(low, 8))) < ends[0], test
        if not span.startswith("above") and test != "oxygen saturation":
            assert min(map(float, spread(high, 8))) > ends[-1], test


def test_a_count_above_the_grammar_s_size_gives_all(monkeypatch):
    writers = {f"task {i}": lambda rng, i=i: f"{i} {rng.choice('ab')}" for i in range(30)}
    monkeypatch.setattr(grammar_module, "grammar", lambda domain, path: Grammar(domain, writers.items))
    most = 2 * sum(split_of(task) == "train" for task in writers)
    assert len(draw_prompts("tiny", "train", 500, seed=0)) == most
    assert len(draw_prompts("tiny", "train", most - 1, seed=0)) == most - 1


@pytest.mark.parametrize("domain, split", [("physics", "train"), ("sql", "dev")])
def test_unknown_domain_or_split_names_the_known_ones(domain, split):
    with pytest.raises(ConfigError, match="type one of"):
        draw_prompts(domain, split, 1, seed=0)


def test_filled_in_words_are_correct_english():
    assert [an(noun) for noun in ("apple", "user", "hour", "engineer")] == [
        "an apple", "a user", "an hour", "an engineer"]  # fmt: skip
    assert [singular(noun) for noun in ("cities", "movies", "matches", "loans")] == [
        "city", "movie", "match", "loan"]  # fmt: skip
