"""Joined answers: several artifacts are read as one, evenly mixed, and held-out prompts are never trained on."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from drafterforge.artifacts.folder import write_artifact
from drafterforge.data.answers import SPLITS, Answer, AnswerSet, answer_stats, encode_shard
from drafterforge.data.features import JoinedFeatures
from drafterforge.data.joined import JoinedAnswers, proportional_order
from drafterforge.errors import ArtifactError, ConfigError

DOMAINS = ("sql", "math", "chat")


def write_answers(folder: Path, name: str, prompts: dict[str, list[tuple[int, str]]]) -> AnswerSet:
    """An artifact whose (prompt token, domain) rows are stored backwards, in two shards."""
    path, parts = folder / name, []
    target = {"target": "tiny", "target_fingerprint": "f00d", "config": {"name": name}}
    metrics: dict = {}
    with write_artifact(path, kind="answers", name=name, metrics=metrics, **target) as inside:
        for split in SPLITS:
            rows = []
            for index, (token, domain) in enumerate(prompts[split]):
                ids = [1, token, 5, 6]
                rows.append((index, Answer(f"{name}-{token}", domain, "", split, ids, [0, 0, 1, 1], 2, 2, True)))
            for shard in range(2):
                parts.append(inside / f"{split}-{shard:05d}.arrow")
                parts[-1].write_bytes(encode_shard(rows[::-1][shard::2]))
        metrics |= answer_stats(parts)
    return AnswerSet.open(path)


def distinct_prompts(first: int, *, train: int, domains: tuple[str, ...] = DOMAINS) -> dict[str, list[tuple[int, str]]]:
    """Distinct prompts from token `first` on, the domains one after the other in each split."""
    counts = {"train": train, "val": 3, "test": 3}
    starts = {"train": first, "val": first + train, "test": first + train + 3}
    return {
        split: [(starts[split] + i, domains[i * len(domains) // count]) for i in range(count)]
        for split, count in counts.items()
    }


def prompt_tokens(rows) -> list[int]:
    return [row.input_ids[1] for row in rows]


def test_joining_one_artifact_changes_nothing(tmp_path):
    answers = write_answers(tmp_path, "one", distinct_prompts(10, train=9))
    joined = JoinedAnswers([answers])
    for split in SPLITS:
        assert list(joined.rows(split)) == list(answers.rows(split))
        assert prompt_tokens(joined.rows(split)) == sorted(prompt_tokens(joined.rows(split)))
        rows = joined.rows(split, "math")
        assert list(rows) == [row for row in answers.rows(split) if row.domain == "math"]
        assert [answers.rows(split)[row] for _, row in rows.locations.tolist()] == list(rows)
        assert len(joined.rows(split, "general")) == len(answers.rows(split))
    assert (joined.selected_domain("math"), joined.selected_domain("general")) == ("math", "")
    assert joined.digest == answers.manifest.digest and joined.manifests == [answers.manifest]


def test_splits_and_domains_join_all_artifacts_and_every_prefix_is_evenly_mixed(tmp_path):
    sets = [
        write_answers(tmp_path, "small", distinct_prompts(10, train=30)),
        write_answers(tmp_path, "large", distinct_prompts(100, train=60)),
    ]
    joined = JoinedAnswers(sets)
    for split in SPLITS:
        rows = joined.rows(split)
        assert sorted(prompt_tokens(rows)) == sorted(
            prompt_tokens(sets[0].rows(split)) + prompt_tokens(sets[1].rows(split))
        )
        sql_rows = joined.rows(split, "sql")
        assert {row.domain for row in sql_rows} == {"sql"} and len(sql_rows) == len(rows) / 3
    rows = joined.rows("train")
    assert Counter((row.id[0], row.domain) for row in rows[:9]) == {
        **{("s", domain): 1 for domain in DOMAINS},
        **{("l", domain): 2 for domain in DOMAINS},
    }
    assert {row.id[0] for row in joined.rows("test")[:6]} == {"s", "l"}
    assert joined.digest == [answers.manifest.digest for answers in sets]
    ids, mask = rows.arrays(4)
    assert (ids.tolist(), mask.tolist()) == (rows[4].input_ids, rows[4].loss_mask)


def test_a_prompt_is_used_once_and_never_trained_on_if_any_artifact_holds_it_out(tmp_path, caplog):
    first = {"train": [(1, "sql"), (2, "sql"), (3, "sql")], "val": [(10, "sql")], "test": [(20, "sql"), (21, "sql")]}
    later = {
        "train": [(1, "sql"), (10, "sql"), (4, "sql"), (20, "sql")],  # trained on, held out, new, held out
        "val": [(2, "sql"), (11, "sql")],  # trained on in the first
        "test": [(21, "sql"), (10, "sql"), (22, "sql")],  # held out in the first
    }
    joined = JoinedAnswers([write_answers(tmp_path, "first", first), write_answers(tmp_path, "later", later)])
    ids = {split: sorted(row.id for row in joined.rows(split)) for split in SPLITS}
    assert ids == {
        "train": ["first-1", "first-3", "later-4"],
        "val": ["first-10", "later-11", "later-2"],  # held out rather than trained on
        "test": ["first-20", "first-21", "later-22"],
    }
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "first, later: dropped 3 answers to prompts that an earlier artifact has, and 3 training answers to prompts "
        "that one of them holds out"
    ]


def test_other_artifacts_can_give_the_held_out_rows_and_none_of_these_is_trained_on(tmp_path, caplog):
    gold = {"train": [(1, "sql"), (2, "sql"), (10, "sql")], "val": [(3, "sql"), (11, "sql")], "test": [(21, "sql")]}
    small = {"train": [(1, "sql"), (4, "sql"), (30, "sql")], "val": [(10, "sql"), (11, "sql")], "test": [(20, "sql")]}
    sets = [write_answers(tmp_path, "gold", gold), write_answers(tmp_path, "own", small)]
    joined = JoinedAnswers(sets[:1], held_out=sets[1:])
    ids = {split: sorted(row.id for row in joined.rows(split)) for split in SPLITS}
    assert ids == {"train": ["gold-1", "gold-2"], "val": ["own-10", "own-11"], "test": ["own-20"]}
    assert "dropped 0 answers to prompts that an earlier artifact has, and 1 training" in caplog.text
    digests = [answers.manifest.digest for answers in sets]
    assert joined.recorded_settings == {"answers": digests[0], "val_answers": digests[1:]}
    assert [manifest.digest for manifest in joined.manifests] == digests

    joined = JoinedAnswers(sets, held_out=sets[1:])
    ids = {split: sorted(row.id for row in joined.rows(split)) for split in SPLITS}
    assert ids["train"] == ["gold-1", "gold-2", "own-30", "own-4"] and ids["val"] == ["own-10", "own-11"]
    assert JoinedAnswers(sets[:1]).recorded_settings == {"answers": digests[0]}
    few = JoinedAnswers(sets[:1], 1, sets[1:])
    assert len(few.rows("train")) == 1 and len(few.rows("val")) == 2


def test_a_prompt_that_any_set_holds_out_is_not_trained_on_though_others_give_the_held_out_rows(tmp_path, caplog):
    prompts = {
        "first": {"train": [(1, "sql")], "val": [(2, "sql")], "test": [(3, "sql")]},
        "second": {"train": [(2, "sql"), (3, "sql"), (4, "sql")], "val": [(5, "sql")], "test": [(6, "sql")]},
        "judge": {"train": [(7, "sql")], "val": [(8, "sql")], "test": [(9, "sql")]},
    }
    first, second, judge = (write_answers(tmp_path, name, rows) for name, rows in prompts.items())
    joined = JoinedAnswers([first, second], held_out=[judge])
    ids = {split: sorted(row.id for row in joined.rows(split)) for split in SPLITS}
    assert ids == {"train": ["first-1", "second-4"], "val": ["judge-8"], "test": ["judge-9"]}
    assert "and 2 training answers to prompts that one of them holds out" in caplog.text


def test_artifacts_without_common_prompts_say_nothing(tmp_path, caplog):
    JoinedAnswers(
        [
            write_answers(tmp_path, "a", distinct_prompts(10, train=3)),
            write_answers(tmp_path, "b", distinct_prompts(50, train=3)),
        ]
    )
    assert caplog.records == []


def test_num_answers_takes_evenly_from_domains_and_more_answers_contain_fewer(tmp_path):
    answers = write_answers(tmp_path, "one", distinct_prompts(10, train=60))  # one domain after the other
    selections = [JoinedAnswers([answers], count).rows("train") for count in range(1, 61)]
    assert [len(rows) for rows in selections] == list(range(1, 61))
    for fewer, more in pairwise(selections):
        assert prompt_tokens(more)[: len(fewer)] == prompt_tokens(fewer)
    counts = Counter(row.domain for row in selections[9])
    assert max(counts.values()) - min(counts.values()) <= 1 and counts.keys() == set(DOMAINS)
    of_math = [row for row in selections[29] if row.domain == "math"]
    assert (
        of_math == [row for row in answers.rows("train") if row.domain == "math"][: len(of_math)]
    )  # by prompt, not shard
    limited = JoinedAnswers([answers], 4)
    assert len(limited.rows("val")) == len(limited.rows("test")) == 3
    assert limited.token_counts(90)[5:7].tolist() == [4, 4] and limited.token_counts(90).sum() == 8
    assert {row.domain for row in limited.rows("train", "chat")} == {"chat"} and len(limited.rows("train", "chat")) == 4


def test_more_answers_than_there_are_is_refused(tmp_path):
    limited = JoinedAnswers([write_answers(tmp_path, "one", distinct_prompts(10, train=9))], 4)
    with pytest.raises(ConfigError, match=r"trainer.num_answers=4, but .*one has 3 training answers of sql; type .*=3"):
        limited.rows("train", "sql")


def test_an_artifact_without_the_domain_gives_no_rows_and_warns(tmp_path, caplog):
    sets = [write_answers(tmp_path, "both", distinct_prompts(10, train=6, domains=("sql", "math")))]
    sets += [write_answers(tmp_path, "other", distinct_prompts(50, train=6, domains=("chat",)))]
    rows = JoinedAnswers(sets).rows("train", "sql")
    assert {row.id.partition("-")[0] for row in rows} == {"both"} and len(rows) == 3
    assert "no sql answers in other: training on the others alone" in caplog.text
    assert (
        len(JoinedAnswers(sets).rows("train", "python")) == 12
    )  # all rows, as of a single artifact without the domain


def test_a_split_without_the_domain_says_what_to_type(tmp_path):
    prompts = distinct_prompts(10, train=6) | {"val": [(90, "sql")]}
    with pytest.raises(ArtifactError, match=r"one has no val answers of math; prepare it with data\.num_val=3 or more"):
        JoinedAnswers([write_answers(tmp_path, "one", prompts)]).rows("val", "math")


def test_artifacts_of_one_name_are_refused(tmp_path):
    answers = write_answers(tmp_path, "one", distinct_prompts(10, train=3))
    with pytest.raises(ConfigError, match="two folders are called one, but their features are stored by that name"):
        JoinedAnswers([answers, answers])


def test_a_token_outside_the_targets_vocabulary_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="has token id 6, but the target has 6 ids"):
        JoinedAnswers([write_answers(tmp_path, "one", distinct_prompts(10, train=3))]).token_counts(6)


def test_features_of_several_artifacts_come_in_the_order_asked_for():
    class Part:
        def __init__(self, name: str) -> None:
            self.name, self.calls = name, []

        def reader(self, split: str):
            return lambda rows: self.calls.append(rows) or [f"{self.name} {split} {row}" for row in rows]

    parts = [Part("a"), Part("b"), Part("c")]
    read = JoinedFeatures(parts).reader("val")
    assert read([[1, 7], [0, 2], [1, 0]]) == ["b val 7", "a val 2", "b val 0"]
    assert [part.calls for part in parts] == [[[2]], [[7, 0]], []]  # one call per artifact


def test_proportional_order_keeps_the_order_within_groups_and_mixes_every_prefix_evenly():
    groups = ["a"] * 6 + ["b"] * 3 + ["c"]
    order = proportional_order(groups)
    assert sorted(order.tolist()) == list(range(10))
    assert [number for number in order if number < 6] == list(range(6))
    for end in range(11):
        counts = Counter(groups[number] for number in order[:end])
        assert all(abs(counts[name] - end * share) <= 1 for name, share in {"a": 0.6, "b": 0.3, "c": 0.1}.items())
    assert proportional_order([]).dtype == np.int64
