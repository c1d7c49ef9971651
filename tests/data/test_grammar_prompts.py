"""Prompts of grammars: three disjoint splits, the mixture of `general`, and options that no grammar takes."""

from __future__ import annotations

from collections import Counter

import pytest

from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.data.prompts import load_prompts, shares
from drafterforge.errors import ConfigError
from drafterforge.prompts import grammar as grammar_module
from drafterforge.prompts.grammar import Draw
from tests.data.prompt_files import SQL, texts


@pytest.fixture
def grammar(monkeypatch):
    """Every domain has a grammar with seven tasks."""

    def draw(domain: str, split: str, count: int, seed: int, path: str) -> list[Draw]:
        return [Draw(f"{split} {i % 7}", f"{domain} {split} {seed} {i}") for i in range(count)]

    monkeypatch.setattr(grammar_module, "draw_prompts", draw)


def test_grammar_prompts_fill_every_split_and_repeat_exactly(grammar):
    data = DataConfig(num_train=20, num_val=5, num_test=6)
    prompts = load_prompts(data, SQL, seed=3)
    assert {split: len(prompts[split]) for split in prompts} == {"train": 20, "val": 5, "test": 6}
    first = prompts["val"][0]
    assert (first.id, first.domain, first.task) == ("sql-val-00000", "sql", "val 0")
    assert first.messages == ({"role": "user", "content": "sql val 3 0"},)
    assert prompts == load_prompts(data, SQL, seed=3)


def test_a_grammar_with_fewer_prompts_gives_all_and_says_so(grammar, monkeypatch, capsys):
    draw = grammar_module.draw_prompts
    monkeypatch.setattr(
        grammar_module, "draw_prompts", lambda domain, split, count, *more: draw(domain, split, 9, *more)
    )
    assert len(load_prompts(DataConfig(num_train=500, num_val=9, num_test=9), SQL, seed=0)["train"]) == 9
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "has only 9 distinct train prompts, not 500; all are used" in printed


def test_general_is_the_weighted_mixture_evenly_interleaved(grammar):
    general = DomainConfig(name="general", weights={"sql": 3.0, "math": 1.0, "chat": 0.0})
    train = load_prompts(DataConfig(num_train=400), general, seed=0)["train"]
    assert Counter(p.domain for p in train) == {"sql": 300, "math": 100}
    assert Counter(p.domain for p in train[:40]) == {"sql": 30, "math": 10}
    assert len({p.id for p in train}) == 400


def test_shares_add_up_and_differ_from_the_exact_ones_by_less_than_one():
    weights = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.5}
    for total in range(50):
        counts = shares(weights, total)
        assert sum(counts.values()) == total
        assert all(abs(counts[n] - total * weights[n] / 3.5) < 1 for n in weights)


def test_a_text_drawn_in_two_splits_stays_in_the_held_out_one(monkeypatch):
    monkeypatch.setattr(
        grammar_module,
        "draw_prompts",
        lambda _, split, count, seed, path: [Draw(split, f"ask  {i}") for i in range(count)],
    )
    prompt_texts = texts(load_prompts(DataConfig(num_train=9, num_val=5, num_test=3), SQL, 0))
    assert prompt_texts == {
        "test": ["ask 0", "ask 1", "ask 2"],
        "val": ["ask 3", "ask 4"],
        "train": ["ask 5", "ask 6", "ask 7", "ask 8"],
    }


def test_a_domain_without_grammar_says_what_to_type():
    with pytest.raises(ConfigError, match=r"domain=medical .* data=jsonl path=FILE.jsonl or data=hf"):
        load_prompts(DataConfig(), DomainConfig(name="medical", grammar=False), 0)
    with pytest.raises(ConfigError, match=r"grammar has no answers"):
        load_prompts(DataConfig(answers="given"), SQL, 0)


def test_domain_names_are_refused_for_a_grammar():
    with pytest.raises(ConfigError, match=r"data\.domain_names= is read by data=jsonl only.*type data=jsonl"):
        DataConfig(domain_names={"code": "python"})


def test_licences_are_refused_for_a_grammar():
    with pytest.raises(ConfigError, match=r"data\.licences= is read by data=jsonl only"):
        DataConfig(licences=["MIT"])
