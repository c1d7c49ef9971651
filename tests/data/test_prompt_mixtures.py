"""Mixtures of domains from one file of prompts: names, shares and lines that are dropped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from drafterforge.config.data import DomainConfig
from drafterforge.data.prompts import SPLITS, capped_shares
from tests.data.prompt_files import load, write_lines

GENERAL = DomainConfig(name="general", weights={"sql": 1.0, "python": 1.0, "math": 1.0, "chat": 0.0})


def of_domains(path: Path, **counts: int) -> Path:
    """Lines of each domain in a file; those of `none` name no domain."""
    rows = [
        {"prompt": f"{name} {i}"} | ({} if name == "none" else {"domain": name})
        for name, count in counts.items()
        for i in range(count)
    ]
    return write_lines(path, rows)


def test_domains_of_lines_are_renamed(tmp_path, caplog):
    path = of_domains(tmp_path / "a.jsonl", code=30, math=30, none=30)
    domain = DomainConfig(name="own", weights={"python": 1.0, "math": 1.0, "own": 1.0})
    prompts = [p for split in load(path, domain, domain_names={"code": "python"}).values() for p in split]
    assert Counter(p.domain for p in prompts) == {
        "python": 30,
        "math": 30,
        "own": 30,
    }  # a line without a domain has the command's
    assert {p.messages[0]["content"].split()[0] for p in prompts if p.domain == "python"} == {"code"}
    assert caplog.text == ""
    load(path, domain, domain_names={"cod": "python"})
    assert "data.domain_names renames cod, but" in caplog.text and "has only code, math, own" in caplog.text


def test_a_mixture_is_even_and_larger_domains_replace_a_small_one(tmp_path):
    path = of_domains(tmp_path / "a.jsonl", sql=900, code=400, math=40)
    options = {"domain_names": {"code": "python"}, "num_train": 300, "num_val": 9, "num_test": 3}
    prompts = load(path, GENERAL, **options)
    counts = {split: Counter(p.domain for p in prompts[split]) for split in SPLITS}
    few = counts["train"]["math"]  # of 40 lines, those that are not held out
    assert 30 < few < 40 and counts["train"]["sql"] + counts["train"]["python"] == 300 - few
    assert abs(counts["train"]["sql"] - counts["train"]["python"]) <= 1
    assert {split: len(prompts[split]) for split in SPLITS} == {"train": 300, "val": 9, "test": 3}
    assert counts["test"] == {"sql": 1, "python": 1, "math": 1}
    first = Counter(p.domain for p in prompts["train"][:60])
    assert all(abs(first[name] - counts["train"][name] / 5) <= 1 for name in first)
    assert prompts == load(path, GENERAL, **options) != load(path, GENERAL, seed=1, **options)


def test_weights_of_a_mixture_hold_for_the_domains_of_a_file(tmp_path):
    path = of_domains(tmp_path / "a.jsonl", sql=600, python=600)
    domain = DomainConfig(name="general", weights={"sql": 3.0, "python": 1.0})
    assert Counter(p.domain for p in load(path, domain, num_train=100)["train"]) == {"sql": 75, "python": 25}


def test_lines_of_domains_without_a_weight_are_dropped_with_a_warning(tmp_path, caplog):
    path = of_domains(tmp_path / "a.jsonl", sql=50, code=20, chat=9, none=5)
    prompts = load(path, GENERAL)
    assert {p.domain for split in prompts.values() for p in split} == {"sql"}
    assert "dropped 34 lines of domains without a weight (code 20, chat 9, none 5)" in caplog.text
    assert "type data.domain_names={code: OURS}, or domain.weights.code=1" in caplog.text


def test_a_file_without_a_domain_of_the_mixture_keeps_all_its_lines(tmp_path, caplog):
    path = of_domains(tmp_path / "a.jsonl", support=200, none=200)
    prompts = [p for split in load(path, GENERAL).values() for p in split]
    assert Counter(p.domain for p in prompts) == {"support": 200, "general": 200} and caplog.text == ""


def test_no_share_exceeds_its_domain_and_the_others_take_the_rest():
    weights = {"a": 1.0, "b": 2.0, "c": 1.0}
    assert capped_shares({"a": 100, "b": 100, "c": 100}, weights, 40) == {"a": 10, "b": 20, "c": 10}
    assert capped_shares({"a": 3, "b": 100, "c": 100}, weights, 39) == {"a": 3, "b": 24, "c": 12}
    assert capped_shares({"a": 3, "b": 20, "c": 100}, weights, 39) == {"a": 3, "b": 20, "c": 16}
    assert capped_shares({"a": 3, "b": 0, "c": 5}, weights, 39) == {"a": 3, "b": 0, "c": 5}


def test_lines_of_other_domains_are_not_answered_for_one_domain(tmp_path, caplog):
    path = of_domains(tmp_path / "a.jsonl", sql=50, code=20, none=30)
    prompts = [p for split in load(path).values() for p in split]
    assert Counter(p.domain for p in prompts) == {"sql": 80}  # a line without a domain has the command's
    assert "dropped 20 lines of other domains (code 20); type data.domain_names={code: sql}" in caplog.text
    caplog.clear()
    path = of_domains(tmp_path / "a.jsonl", code=20, math=30)
    prompts = [p for split in load(path).values() for p in split]
    assert Counter(p.domain for p in prompts) == {"code": 20, "math": 30} and caplog.text == ""
