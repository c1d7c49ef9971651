"""The answers artifact holds the target's tokens and a loss mask, and a killed run resumes to the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.staging import drop_staging, staging_folder
from drafterforge.config.data import DataConfig
from drafterforge.data.answering import marked_spans, prepare_answers, user_turns
from drafterforge.data.answers import Answer, AnswerSet, encode_shard, read_shard
from drafterforge.data.chat import conversation_ids, prompt_ids
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import Prompt
from drafterforge.errors import ArtifactError
from tests.tiny import CHATML, TINY, build_tokenizer

SPLITS = ("train", "val", "test")
EOS = "<|im_end|>"


class Killed(BaseException):
    """Ends the run as a signal would: no code catches it."""


class Echo:
    """A target whose answer is letters drawn from prompt and seed; some answers never end."""

    def __init__(self, tokenizer, kill_after: int | None = None) -> None:
        self.eos = tokenizer.convert_tokens_to_ids(EOS)
        self.letters = tokenizer("abcdefghij")["input_ids"]
        self.calls: list[list[list[int]]] = []
        self.kill_after = kill_after

    def __call__(self, prompts: list[list[int]], max_new_tokens: int, seed: int) -> list[list[int]]:
        if self.kill_after == len(self.calls):
            raise Killed
        self.calls.append(prompts)
        return [self.answer(prompt, max_new_tokens, seed) for prompt in prompts]

    def answer(self, prompt: list[int], max_new_tokens: int, seed: int) -> list[int]:
        key = hashlib.sha256(f"{prompt} {seed}".encode()).digest()
        answer = [self.letters[byte % 10] for byte in key[: 2 + key[-1] % 12]] + [self.eos]
        return answer[:max_new_tokens]


def prompts_of(counts: dict[str, int], turns: int = 1) -> dict[str, list[Prompt]]:
    def prompt(split: str, i: int) -> Prompt:
        messages = tuple({"role": "user", "content": f"{split} {i} {'x' * (i * 7 % 11)} {t}"} for t in range(turns))
        return Prompt(f"sql-{split}-{i:05d}", "sql" if i % 2 else "math", f"task {i}", messages, "grammar")

    return {split: [prompt(split, i) for i in range(number)] for split, number in counts.items()}


SMALL = {"train": 10, "val": 3, "test": 2}


@pytest.fixture
def prepare(chatml, tmp_path):
    def run(prompts=None, generate=None, tokenizer=chatml, name="sql", eos_ids=(), **options) -> AnswerSet:
        target = {
            "target": TINY,
            "config": {"domain": "sql"},
            "seed": 0,
        }
        keys = ("progress", "overwrite", *target)
        target |= {key: options.pop(key) for key in keys if key in options}
        return prepare_answers(
            prompts or prompts_of(SMALL),
            tokenizer=tokenizer,
            generate=generate or Echo(chatml),
            data=DataConfig(**{"shard_size": 4, "max_new_tokens": 9, **options}),
            path=tmp_path / name,
            eos_ids=eos_ids or {chatml.convert_tokens_to_ids(EOS)},
            **target,
        )

    yield run
    for name in os.listdir(tmp_path):
        drop_staging(tmp_path / name.removeprefix(".").removesuffix(".partial"))


def content(answers: AnswerSet) -> dict[str, bytes]:
    return {name: (answers.path / name).read_bytes() for name in answers.manifest.files}


def test_the_answer_of_the_target_follows_each_prompt_and_the_mask_covers_it(chatml, prepare):
    answers = prepare()
    finished = set()
    for split in SPLITS:
        assert [a.id for a in answers.rows(split)] == [p.id for p in prompts_of(SMALL)[split]]
        for answer, prompt in zip(answers.rows(split), prompts_of(SMALL)[split], strict=True):
            ids = prompt_ids(chatml, prompt.messages)
            assert answer.input_ids[: answer.prompt_tokens] == ids
            assert answer.loss_mask == [0] * len(ids) + [1] * answer.answer_tokens
            assert len(answer.input_ids) == len(answer.loss_mask) <= len(ids) + 9
            assert answer.finished == (answer.input_ids[-1] == chatml.eos_token_id)
            assert (answer.domain, answer.task, answer.split) == (prompt.domain, prompt.task, split)
            finished.add(answer.finished)
    assert finished == {True, False}


def test_answers_that_ended_at_other_tokens_are_not_used_again(chatml, prepare):
    answers = prepare()
    assert prepare().manifest.digest == answers.manifest.digest
    ends = {chatml.convert_tokens_to_ids(EOS), 3}
    with pytest.raises(ArtifactError, match="by a target whose answers end at other tokens; type answers=sql"):
        prepare(eos_ids=ends)
    assert prepare(eos_ids=ends, overwrite=True).manifest.metrics["eos_ids"] == sorted(ends)


def test_shards_are_length_sorted_and_hold_one_split_each(chatml, prepare):
    echo, done = Echo(chatml), []
    answers = prepare(generate=echo, progress=lambda *numbers: done.append(numbers))
    shards = ["test-00000", "train-00000", "train-00001", "train-00002", "val-00000"]
    files = sorted(answers.manifest.files)
    assert files == ["stats.json", *(f"{shard}.arrow" for shard in shards)]
    lengths = [len(prompt) for call in echo.calls[:3] for prompt in call]
    assert lengths == sorted(lengths, reverse=True) and [len(c) for c in echo.calls] == [
        4,
        4,
        2,
        3,
        2,
    ]
    assert [answered for _, answered, _ in done] == [4, 8, 10, 13, 15] and done[0][2] == 15
    tokens = sum(a.answer_tokens for split in SPLITS for a in answers.rows(split))
    assert done[-1][0] == tokens


@pytest.mark.parametrize("turns", [1, 2])
def test_a_killed_run_restarted_gives_the_bytes_of_an_uninterrupted_one(chatml, prepare, turns):
    prompts = prompts_of(SMALL, turns)
    full = prepare(prompts, name="full")
    for kill_after in range(5 * turns):
        name = f"killed-{kill_after}"
        with pytest.raises(Killed):
            prepare(prompts, Echo(chatml, kill_after), name=name)
        folder = staging_folder(full.path.with_name(name))
        assert not full.path.with_name(name).exists() and folder.exists()
        echo = Echo(chatml)
        again = prepare(prompts, echo, name=name)
        assert content(again) == content(full)
        assert len(echo.calls) == (5 - kill_after // turns) * turns  # whole shards are not redone
        assert not folder.exists()
        assert timeless(again) == timeless(full)


def timeless(answers: AnswerSet) -> Manifest:
    """The manifest without its name, its time and its rate."""
    manifest = answers.manifest
    return replace(manifest, name="", created="", metrics=manifest.metrics | {"tokens_per_s": 0})


@pytest.mark.parametrize("damage", ["truncated", "missing record", "half record", "no arrow"])
def test_all_prompts_of_a_damaged_shard_are_answered_again(chatml, prepare, damage):
    full = prepare(name="full")
    with pytest.raises(Killed):
        prepare(generate=Echo(chatml, 3))
    arrow = staging_folder(full.path.with_name("sql")) / "train-00001.arrow"
    record = arrow.with_suffix(".json")
    if damage == "truncated":
        arrow.write_bytes(arrow.read_bytes()[:-20])
    elif damage == "missing record":
        record.unlink()
    elif damage == "half record":
        record.write_bytes(record.read_bytes()[:-9])
    else:
        arrow.unlink()
    echo = Echo(chatml)
    assert content(prepare(generate=echo)) == content(full)
    assert len(echo.calls) == 3


def test_a_run_with_other_settings_does_not_resume_from_these_shards(chatml, prepare):
    with pytest.raises(Killed):
        prepare(generate=Echo(chatml, 3))
    with pytest.raises(ArtifactError, match=r"unfinished work of other settings \(.*seed: 0 there, 1 now\)"):
        prepare(seed=1)
    echo = Echo(chatml)
    assert content(prepare(generate=echo, seed=1, overwrite=True)) == content(prepare(name="full", seed=1))
    assert len(echo.calls) == 5


def test_a_finished_artifact_is_kept_unless_its_settings_or_prompts_changed(chatml, prepare):
    first, echo = prepare(), Echo(chatml)
    assert prepare(generate=echo).manifest == first.manifest and not echo.calls
    with pytest.raises(ArtifactError, match=r'domain: "sql" there, "math" now.*overwrite=true'):
        prepare(config={"domain": "math"})
    with pytest.raises(ArtifactError, match="from other prompts; type answers=sql to train on it, overwrite=true"):
        prepare(prompts_of({"train": 4, "val": 1, "test": 1}))
    second = prepare(prompts_of({"train": 4, "val": 1, "test": 1}), overwrite=True)
    assert len(second.rows("train")) == 4
    assert [p.name for p in second.path.parent.iterdir()] == ["sql"]


def test_the_target_answers_turn_by_turn_and_the_mask_covers_every_turn(chatml, prepare):
    answers = prepare(prompts_of(SMALL, turns=3), max_new_tokens=40)
    for answer in answers.rows("train"):
        spans = marked_spans(answer.loss_mask)
        assert len(spans) == 3 and spans[0][0] == answer.prompt_tokens
        assert sum(stop - start for start, stop in spans) == answer.answer_tokens
        texts = [chatml.decode(answer.input_ids[start:stop]) for start, stop in spans]
        messages = []
        for text, ask in zip(texts, prompts_of(SMALL, 3)["train"][int(answer.id[-5:])].messages, strict=True):
            messages += [ask, {"role": "assistant", "content": text.removesuffix(EOS)}]
        ids, mask = conversation_ids(chatml, messages)
        assert ids[:-1] == answer.input_ids and mask[:-1] == answer.loss_mask  # without the last \n


def test_a_template_that_rewrites_history_keeps_the_last_answer_only(thinking, prepare):
    echo = Echo(thinking)
    echo.letters = thinking("<think>hm</think>a")["input_ids"]
    echo.answer = lambda prompt, *_: [*echo.letters, echo.eos]
    answers = prepare(prompts_of(SMALL, turns=2), echo, tokenizer=thinking, max_new_tokens=50)
    for answer in answers.rows("train"):
        ((start, stop),) = marked_spans(answer.loss_mask)
        assert stop == len(answer.input_ids) and start == answer.prompt_tokens
        assert "<think>" not in thinking.decode(answer.input_ids[:start])


def test_long_prompts_are_dropped_and_counted_and_long_conversations_are_cut(chatml, prepare):
    prompts = prompts_of(SMALL)
    lengths = [len(prompt_ids(chatml, p.messages)) for p in prompts["train"]]
    limit = sorted(lengths)[6]
    answers = prepare(prompts, max_prompt_tokens=limit)
    ids = [p.id for p, n in zip(prompts["train"], lengths, strict=True) if n <= limit]
    assert [a.id for a in answers.rows("train")] == ids
    assert answers.manifest.metrics["splits"]["train"]["left_out"] == 10 - len(ids) > 0
    two = prepare(prompts_of(SMALL, turns=2), name="two", max_prompt_tokens=max(lengths) + 5)
    assert all(len(marked_spans(a.loss_mask)) == 1 for a in two.rows("train"))
    with pytest.raises(ArtifactError, match=r"all 10 train prompts are longer than 3 tokens; type data\.max"):
        prepare(name="none", max_prompt_tokens=3)


STRICT = "{% for message in messages %}{% if 'xxxxxx' in message['content'] %}{{ raise_exception('no x') }}{% endif %}"


def test_prompts_that_the_template_refuses_are_dropped_and_counted(prepare, caplog):
    strict = build_tokenizer(STRICT + "{% endfor %}" + CHATML)
    prompts = prompts_of(SMALL)
    ids = [prompt.id for prompt in prompts["train"] if "xxxxxx" not in prompt.messages[0]["content"]]
    answers = prepare(prompts, tokenizer=strict)
    assert [answer.id for answer in answers.rows("train")] == ids
    assert answers.manifest.metrics["splits"]["train"]["left_out"] == 10 - len(ids) > 0
    assert "5 of 10 train prompts were dropped, such as prompt 'sql-train-00001'" in caplog.text
    turn = {"role": "user", "content": "xxxxxx"}
    later = {
        split: [replace(prompt, messages=(*prompt.messages, turn)) for prompt in part]
        for split, part in prompts.items()
    }
    spans = [marked_spans(row.loss_mask) for row in prepare(later, tokenizer=strict, name="two").rows("train")]
    assert [len(part) for part in spans] == [1] * len(ids)
    refused = {"train": [replace(prompts["train"][0], messages=(turn,))]}
    with pytest.raises(ArtifactError, match=r"none of 1 train .* prompt 'sql-train-00000' \(grammar\): .* no x"):
        prepare(refused, tokenizer=strict, name="none")


def prompt_with_answers(*contents: str) -> Prompt:
    roles = ("user", "assistant") * len(contents)
    messages = tuple({"role": r, "content": c} for r, c in zip(roles, contents, strict=False))
    return Prompt(f"id-{contents[0]}", "chat", "", messages, "a.jsonl:3")


def test_given_answers_are_marked_without_asking_the_target(chatml, prepare, caplog):
    def never(*_):
        raise AssertionError("asked")

    prompts = {
        s: [prompt_with_answers(f"{s} hi", "hello", "and?", "a long answer"), prompt_with_answers(s, "x")]
        for s in SPLITS
    }
    answers = prepare(prompts, never, answers="given", max_new_tokens=10)
    row = answers.rows("train")[0]
    ids, mask = conversation_ids(chatml, prompts["train"][0].messages)
    assert row.input_ids == ids[: len(row.input_ids)]
    assert row.loss_mask == mask[: len(row.input_ids)]
    spans = [chatml.decode(row.input_ids[a:b]) for a, b in marked_spans(row.loss_mask)]
    assert spans == [f"hello{EOS}", "a long ans"] and not row.finished
    assert answers.rows("train")[1].finished
    assert [record.getMessage() for record in caplog.records] == ["3 of 9 answers were cut at data.max_new_tokens=10"]
    caplog.clear()
    prepare(prompts, never, name="c", answers="given", max_new_tokens=100)
    assert caplog.records == []
    prompts["val"].append(prompt_with_answers("only a question"))
    answers = prepare(prompts, never, name="b", answers="given")
    assert len(answers.rows("val")) == 2
    assert "1 of 3 val prompts were dropped, such as prompt 'id-only a question' (a.jsonl:3): it has no" in caplog.text
    prompts["val"] = prompts["val"][-1:]
    with pytest.raises(ArtifactError, match=r"none of 1 val prompts can be used .*no assistant turn, .*answers=target"):
        prepare(prompts, never, name="d", answers="given")


def test_user_turns_keep_given_history_and_drop_the_last_answer():
    def cut(roles: str) -> list[str]:
        names = {"s": "system", "u": "user", "a": "assistant"}
        turns = user_turns([{"role": names[r], "content": r} for r in roles])
        return ["".join(m["content"] for m in turn) for turn in turns]

    assert cut("u") == cut("ua") == ["u"]
    assert cut("suuu") == ["su", "u", "u"]
    assert cut("suaua") == ["suau"]
    assert cut("uuau") == ["u", "uau"]


def test_rows_are_lazy_sequences_with_arrays_and_lengths(prepare):
    rows = prepare().rows("train")
    assert len(rows) == 10 and rows[-1].id == "sql-train-00009"
    assert [a.id for a in rows[2:4]] == ["sql-train-00002", "sql-train-00003"]
    with pytest.raises(IndexError):
        rows[10]
    assert rows.lengths.tolist() == [len(a.input_ids) for a in rows]
    ids, mask = rows.arrays(3)
    assert (ids.dtype, mask.dtype) == (np.int32, np.uint8)
    assert (ids.tolist(), mask.tolist()) == (rows[3].input_ids, rows[3].loss_mask)


def test_token_counts_are_those_of_the_marked_tokens(prepare):
    answers = JoinedAnswers([prepare(prompts_of(SMALL, turns=2))])
    expected = np.zeros(300, dtype=np.int64)
    for answer in answers.rows("train"):
        for token, value in zip(answer.input_ids, answer.loss_mask, strict=True):
            expected[token] += value
    assert (answers.token_counts(300) == expected).all() and expected.sum() > 0
    assert answers.token_counts(300, split="val").sum() < expected.sum()


def test_stats_say_how_many_how_long_and_how_many_finished(prepare):
    answers = prepare()
    stats = json.loads((answers.path / "stats.json").read_text())
    rows = answers.rows("train")
    train = stats["splits"]["train"]
    assert (train["answers"], train["left_out"], train["answer_tokens"]["max"]) == (10, 0, 9)
    assert train["answer_tokens"]["sum"] == sum(a.answer_tokens for a in rows)
    assert train["finished"] == sum(a.finished for a in rows) / 10
    assert train["prompt_tokens"]["mean"] == sum(a.prompt_tokens for a in rows) / 10
    assert stats["domains"] == {"math": 8, "sql": 7}
    assert answers.manifest.metrics["tokens_per_s"] > 0


def test_opening_for_another_target_is_refused_and_shards_open_with_datasets(prepare):
    path = prepare().path
    assert len(AnswerSet.open(path, "f00d", target="tiny").rows("val")) == 3
    with pytest.raises(ArtifactError, match=r"fingerprint f00d.*fingerprint beef"):
        AnswerSet.open(path, "beef", target="tiny")
    datasets = pytest.importorskip("datasets")
    shard = datasets.Dataset.from_file(str(path / "val-00000.arrow"))
    assert sorted(shard["index"]) == [0, 1, 2]


FORGED = {
    "its columns are": lambda table: table.drop_columns(["id"]),
    "domain has empty cells": lambda table: table.set_column(2, "domain", pa.array([None, "sql"])),
    "input_ids and loss_mask differ in length": lambda table: table.set_column(
        6, "loss_mask", pa.array([[1], [1]], pa.list_(pa.uint8()))
    ),
    "prompt_tokens is beyond the tokens": lambda table: table.set_column(
        7, "prompt_tokens", pa.array([9, 1], pa.int32())
    ),
}


@pytest.mark.parametrize("reason", FORGED)
def test_a_forged_shard_is_one_line(tmp_path, reason):
    table = read_shard(shard_at(tmp_path / "a.arrow"))
    with pa.ipc.new_stream(tmp_path / "b.arrow", FORGED[reason](table).schema) as stream:
        stream.write_table(FORGED[reason](table))
    with pytest.raises(ArtifactError, match=reason):
        read_shard(tmp_path / "b.arrow")


def test_a_forged_offset_is_refused_before_arrow_follows_it(tmp_path):
    path = shard_at(tmp_path / "a.arrow")
    content, offsets = path.read_bytes(), np.array([0, 2, 4], "<i4").tobytes()
    assert content.count(offsets) == 3  # of id or task, input_ids and loss_mask
    path.write_bytes(content.replace(offsets, np.array([0, 2, 2**30], "<i4").tobytes()))
    with pytest.raises(ArtifactError, match=r"a\.arrow is damaged"):
        read_shard(path)


def shard_at(path):
    answers = [Answer(f"a{n}", "sql", "t", "train", [n, 7], [0, 1], 1, 1, True) for n in range(2)]
    path.write_bytes(encode_shard(list(enumerate(answers))))
    return path
