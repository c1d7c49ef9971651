"""Prompts of JSONL files: every form of a line, three disjoint splits, and one line of error per mistake."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from pathlib import Path

import pytest

from drafterforge.config.data import DomainConfig
from drafterforge.data.prompts import SPLITS, describe_sizes
from drafterforge.errors import ArtifactError
from drafterforge.prompts import grammar
from tests.data.prompt_files import load, texts, write_lines

MIXTURE = DomainConfig(name="own", weights={"own": 1.0, "math": 1.0})


def test_jsonl_takes_messages_turns_conversations_and_prompts(tmp_path):
    user, system = {"role": "user", "content": "one"}, {"role": "system", "content": "be kind"}
    path = write_lines(
        tmp_path / "a.jsonl",
        [
            {"id": "a", "messages": [system, user], "task": "t", "domain": "math"},
            {"id": "b", "prompt": "two"},
            "",
            {"id": "c", "turns": ["three", "four"], "messages": [system, user], "group": "g"},
            {
                "id": 4,
                "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}],
            },
            {"messages": [{"role": "user", "content": "six"}]},
        ],
    )
    prompts = {p.id: p for split in load(path, MIXTURE).values() for p in split}
    assert prompts["a"].messages == (system, user)
    assert (prompts["a"].domain, prompts["a"].task, prompts["a"].source) == (
        "math",
        "t",
        "a.jsonl:1",
    )
    assert prompts["b"].messages == ({"role": "user", "content": "two"},)
    assert [m["content"] for m in prompts["c"].messages] == ["be kind", "three", "four"]
    assert prompts["c"].task == "g"
    assert [m["role"] for m in prompts["4"].messages] == ["user", "assistant"]
    assert prompts["own-000006"].messages[0]["content"] == "six"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"messages": [', "no JSON"),
        ("hello", "no JSON"),
        ("[1, 2]", "a list, wanted an object"),
        ('{"text": "hi"}', r"no messages \(keys: text\), wanted 'messages', 'conversations', 'turns' or 'prompt'"),
        ('{"messages": []}', "an empty 'messages', wanted the text that is asked"),
        ('{"prompt": ""}', "an empty 'prompt', wanted the text that is asked"),
        ('{"prompt": null}', "an empty 'prompt'"),
        ('{"messages": "hi"}', "a str in 'messages', wanted a list"),
        ('{"messages": [{"role": "user"}]}', "the content None of a user message, wanted text"),
        ('{"messages": [{"role": "robot", "content": "hi"}]}', "the role 'robot', wanted one of"),
        ('{"messages": [{"role": "assistant", "content": "hi"}]}', "no user message among 1"),
        ('{"messages": [7]}', "the message 7, wanted"),
        ('{"turns": ["a", 3]}', "the message 3, wanted"),
        ('{"prompt": ["a"]}', "a list in 'prompt', wanted a str"),
        ('{"prompt": "a", "split": "dog"}', "split 'dog', wanted train, val or test"),
        ('{"prompt": "a", "task": {}}', r"task=\{\}, wanted text"),
        (b"\xff\xfe", "bytes that are not UTF-8"),
        (r'{"prompt": "bad \ud800"}', r"half a character \('\\ud800'"),
        (r'{"prompt": "a", "id": "\UDC00"}', "no JSON"),
        (r'{"prompt": "a", "id": "\udc00"}', r"half a character \('\\udc00'"),
        (r'{"prompt": "a", "domain": "\uDC00"}', "half a character"),
        ('{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}", "values that are nested too deeply"),
        ('{"prompt": "a", "split": "' + "x" * 9999 + '"}', r"split 'x{96}\.\.\., wanted"),
        (json.dumps({"turns": ["a"] * 1000}), "1000 messages, wanted at most 256"),
    ],
)
def test_a_bad_jsonl_line_is_named_with_file_and_number(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    line = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b'{"prompt": "fine"}\n\n' + line + b"\n")
    with pytest.raises(ArtifactError, match=rf"a\.jsonl, line 3: found .*{reason}") as error:
        load(path)
    assert "\n" not in str(error.value)


def test_a_pipe_and_a_device_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ArtifactError, match=f"{path} is no regular file, .* type data=jsonl path=FILE"):
            load(path)


def test_missing_empty_and_tiny_files_are_one_line(tmp_path):
    with pytest.raises(ArtifactError, match=r"cannot read .*none\.jsonl: No such file.*path=FILE"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(ArtifactError, match=r"holds no \*\.jsonl and no \*\.json; type data=jsonl path=FILE"):
        load(tmp_path)
    with pytest.raises(ArtifactError, match=r"a\.jsonl has no prompts"):
        load(write_lines(tmp_path / "a.jsonl", ["", " "]))
    rows = [{"prompt": "a"}, {"prompt": " A "}, {"prompt": "b"}]
    with pytest.raises(ArtifactError, match=r"has 2 distinct prompts, .* add at least 1"):
        load(write_lines(tmp_path / "a.jsonl", rows))


def test_a_task_is_in_one_split_whatever_the_seed_and_limits(tmp_path):
    rows = [{"id": f"{t}-{i}", "prompt": f"{t} {i}", "task": f"task {t}"} for t in range(200) for i in range(3)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    split_of: dict[str, str] = {}
    for seed, options in ((0, {}), (1, {"num_train": 50, "num_val": 7, "num_test": 9})):
        prompts = load(path, seed=seed, **options)
        for split in SPLITS:
            assert 0 < len(prompts[split]) <= options.get(f"num_{split}", 10**9)
            for prompt in prompts[split]:
                assert split_of.setdefault(prompt.task, split) == split
    assert Counter(split_of.values())["train"] > 120


def test_the_seed_picks_the_prompts_not_their_order_in_the_file(tmp_path):
    rows = [{"prompt": f"ask {i}"} for i in range(300)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    backwards = write_lines(tmp_path / "b.jsonl", rows[::-1])
    limits = {"num_train": 20, "num_val": 3, "num_test": 3}
    assert texts(load(path, **limits)) == texts(load(backwards, **limits))
    assert texts(load(path, **limits)) != texts(load(path, seed=1, **limits))


def test_a_split_key_is_honoured_and_duplicates_are_dropped(tmp_path):
    rows = [{"prompt": f"ask {i}", "split": "train" if i < 6 else "validation"} for i in range(9)]
    rows += [{"prompt": "held out", "split": "test"}, {"prompt": " Held\tOUT ", "split": "train"}]
    prompt_texts = texts(load(write_lines(tmp_path / "a.jsonl", rows)))
    assert sorted(prompt_texts["train"]) == [f"ask {i}" for i in range(6)]
    assert sorted(prompt_texts["val"]) == ["ask 6", "ask 7", "ask 8"]
    assert prompt_texts["test"] == ["held out"]


@pytest.mark.parametrize("number", [3, 4, 5, 10, 40])
def test_a_small_file_fills_every_split_and_warns(tmp_path, caplog, number):
    rows = [{"prompt": f"ask {i}", "split": "train"} for i in range(number)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with caplog.at_level(logging.WARNING):
        prompt_texts = texts(load(path))
    assert all(prompt_texts.values())
    assert len({text for split in prompt_texts.values() for text in split}) == number
    assert "has no val prompts" in caplog.text and "has no test prompts" in caplog.text
    assert prompt_texts == texts(load(path))


def test_an_empty_split_takes_whole_tasks_if_there_are_several(tmp_path, caplog):
    rows = [{"prompt": f"{i}", "task": f"task {i % 5}", "split": "train"} for i in range(50)]
    prompts = load(write_lines(tmp_path / "a.jsonl", rows))
    tasks = [{p.task for p in prompts[split]} for split in SPLITS]
    assert all(tasks) and sum(map(len, tasks)) == 5
    rows = [{"prompt": f"{i}", "task": "one", "split": "train"} for i in range(50)]
    prompts = load(write_lines(tmp_path / "a.jsonl", rows))
    assert all(prompts.values()) and "of the same task, so test prompts are not new" in caplog.text


def sorted_texts(prompts) -> list[str]:
    return sorted(text for split_texts in texts(prompts).values() for text in split_texts)


def write_licensed_files(folder):
    folder.mkdir()
    lines = [{"prompt": f"Question {n}.", "licence": name} for n, name in enumerate(["MIT", "CC-BY-4.0", "mit (own)"])]
    write_lines(folder / "a.jsonl", [json.dumps(line) for line in lines])
    more = [{"prompt": f"Other {n}."} | ({"license": "MIT"} if n else {}) for n in range(3)]
    write_lines(folder / "b.jsonl", [json.dumps(line) for line in more])
    return folder


def test_json_files_of_lines_are_read_where_a_folder_has_no_jsonl(tmp_path):
    for number in range(2):
        write_lines(tmp_path / f"{number}.json", [{"prompt": f"question {number} {line}"} for line in range(5)])
    assert len(sorted_texts(load(tmp_path))) == 10
    write_lines(tmp_path / "a.jsonl", [{"prompt": f"other {line}"} for line in range(5)])
    assert sorted_texts(load(tmp_path)) == [f"other {line}" for line in range(5)]


def test_all_files_of_a_folder_are_read_and_lines_of_other_licences_dropped(tmp_path, caplog):
    folder = write_licensed_files(tmp_path / "prompts")
    assert len(sorted_texts(load(folder))) == 6
    assert sorted_texts(load(folder, licences=["MIT"])) == ["other 1.", "other 2.", "question 0.", "question 2."]
    assert "dropped 2 lines of other licences (CC-BY-4.0 1, none 1)" in caplog.text
    with pytest.raises(ArtifactError, match=r"no lines of data.licences=\[BSD\]; found: MIT 3, .*none 1"):
        load(folder, licences=["BSD"])


@pytest.mark.parametrize(("number", "sizes"), [(42, [26, 8, 8]), (40, [24, 8, 8]), (20, [12, 4, 4])])
def test_a_small_file_holds_out_enough_prompts_for_a_verdict(tmp_path, number, sizes):
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": f"ask {i}"} for i in range(number)])
    prompt_texts = texts(load(path))
    assert [len(prompt_texts[split]) for split in SPLITS] == sizes
    assert set(texts(load(path, seed=1))["test"]) == set(prompt_texts["test"])
    assert len(load(path, num_test=3)["test"]) == 3


def test_a_small_file_holds_out_whole_tasks(tmp_path):
    rows = [{"prompt": f"{i}", "task": f"task {i // 3}"} for i in range(42)]
    prompts = load(write_lines(tmp_path / "a.jsonl", rows))
    tasks = [{p.task for p in prompts[split]} for split in SPLITS]
    assert sum(map(len, tasks)) == 14 and len(prompts["test"]) >= 6


def test_a_large_file_splits_by_the_prompt_alone(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": f"ask {i}"} for i in range(160)])
    for split, split_texts in texts(load(path)).items():
        assert {grammar.split_of(text) for text in split_texts} == {split}


def test_the_sizes_of_the_splits_say_whether_there_will_be_a_verdict():
    prompts = {split: [None] * size for split, size in (("train", 30), ("val", 4), ("test", 8))}
    assert describe_sizes(prompts) == "42 prompts: 30 train, 4 val, 8 test"
    few = describe_sizes(prompts | {"test": [None]})
    assert few == "35 prompts: 30 train, 4 val, 1 test; with fewer than 4 test prompts there is no verdict on a drafter"


def test_a_pair_of_surrogates_is_one_character(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"prompt": "{number} \\ud83d\\ude00 \\\\ud800"}}\n' for number in range(9)))
    assert {text[1:] for split in texts(load(path)).values() for text in split} == {" \N{GRINNING FACE} \\ud800"}


def test_lines_of_any_number_of_files_have_different_ids(tmp_path):
    for name in "abc":
        write_lines(tmp_path / f"{name}.jsonl", [{"prompt": f"{name} {line}"} for line in range(9)])
    ids = [prompt.id for prompts in load(tmp_path).values() for prompt in prompts]
    assert len(set(ids)) == 27
    assert {name for name in ids if "00005" in name} == {"sql-000005", "sql-000005#5", "sql-000005#5#5"}


def test_a_task_of_more_than_a_tenth_of_the_lines_is_split_by_text(tmp_path, caplog):
    rows = [{"prompt": f"ask {i}", "task": "same"} for i in range(400)]
    prompt_texts = texts(load(write_lines(tmp_path / "a.jsonl", rows)))
    assert {split: {grammar.split_of(text) for text in prompt_texts[split]} for split in SPLITS} == {
        split: {split} for split in SPLITS
    }
    (line,) = [record.getMessage() for record in caplog.records]
    assert "400 of 400 lines have equal tasks, so lines are split by their first messages" in line
    caplog.clear()
    rows = [{"prompt": f"ask {i}", "task": f"task {i % 20}"} for i in range(400)]
    prompts = load(write_lines(tmp_path / "a.jsonl", rows))
    assert sum(len({prompt.task for prompt in prompts[split]}) for split in SPLITS) == 20
    assert "lines have equal" not in caplog.text


@pytest.mark.parametrize("full", SPLITS)
def test_empty_splits_are_filled_up_to_their_limits_before_rows_are_left_out(tmp_path, full):
    rows = [{"prompt": f"ask {i}", "split": full} for i in range(600)]
    limits = {"num_train": 100, "num_val": 20, "num_test": 10}
    prompt_texts = texts(load(write_lines(tmp_path / "a.jsonl", rows), **limits))
    assert [len(prompt_texts[split]) for split in SPLITS] == [100, 20, 10]
    assert len({text for split_texts in prompt_texts.values() for text in split_texts}) == 130


@pytest.mark.parametrize("number", [8, 40])
def test_all_turns_of_a_logged_conversation_are_in_one_split(tmp_path, caplog, number):
    rows = []
    for conversation in range(number):
        messages = [{"role": "system", "content": "Be kind."}]
        for turn in range(5):
            messages.append({"role": "user", "content": f"Question {turn} of {conversation}?"})
            messages.append({"role": "assistant", "content": "Yes."})
            rows.append({"messages": list(messages), "id": f"{conversation} {turn}"})
    prompts = load(write_lines(tmp_path / "a.jsonl", rows), answers="given")
    conversations = [{prompt.id.split()[0] for prompt in prompts[split]} for split in SPLITS]
    assert all(conversations) and sum(map(len, conversations)) == number
    assert "lines have equal" not in caplog.text
