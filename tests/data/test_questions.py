"""Question files: every layout and form, one line of error for what is wrong, even limits, turns in order."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import datasets
import pytest

from drafterforge.data.questions import (
    BENCHMARKS,
    MT_BENCH,
    SPEC_BENCH,
    Question,
    load_questions,
    questions_digest,
    turn_messages,
)
from drafterforge.errors import ArtifactError, ConfigError


def write(path: Path, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def question_row(number: int, category: str = "", *turns: str) -> dict:
    row = {"question_id": number, "category": category, "turns": list(turns or (f"{category} {number}",))}
    return {key: value for key, value in row.items() if value != ""}


def spec_bench() -> list[dict]:
    names = [*MT_BENCH, *(group for group in SPEC_BENCH if group != "mt_bench")]
    return [question_row(10 * position + n, name) for position, name in enumerate(names) for n in range(10)]


# --- layouts and forms ---------------------------------------------------------------------------


def test_both_layouts_of_a_folder_give_the_same_questions(tmp_path):
    rows = {"mt_bench": [question_row(81, "writing", "one", "two")], "sum": [question_row(241, "", "Summarize: x")]}
    for name, row in rows.items():
        write(tmp_path / "flat" / f"{name}.jsonl", row)
        write(tmp_path / "deep" / name / "question.jsonl", row)
    flat, deep = load_questions(tmp_path / "flat"), load_questions(tmp_path / "deep")
    assert flat == deep
    assert [(question.id, question.suite, question.category, question.domain, question.turns) for question in flat] == [
        ("mt_bench-81", "mt_bench", "writing", "chat", ("one", "two")),
        ("cnn_dm-241", "cnn_dm", "cnn_dm", "summarization", ("Summarize: x",)),
    ]
    assert load_questions(tmp_path / "deep" / "sum" / "question.jsonl") == load_questions(tmp_path / "flat/sum.jsonl")
    assert load_questions(tmp_path / "deep" / "sum") == load_questions(tmp_path / "flat", names=["cnn_dm"])


@pytest.mark.parametrize(
    ("name", "row", "turns", "reference"),
    [
        ("mt_bench", question_row(1, "math", "How many?", "Why?") | {"reference": ["3", "so"]}, 2, ("3", "so")),
        (
            "humaneval",
            question_row(1, "humaneval", "Complete this.\n\ndef one():\n") | {"reference": ["return 1"]},
            1,
            None,
        ),
        ("gsm8k", question_row(1, "gsm8k", "2 and 2?") | {"reference": "4"}, 1, ("4",)),
        ("alpaca", {"question_id": 1, "turns": ["Name a bird."]}, 1, ()),
        ("cnn_dm", question_row(1, "summarization", "Summarize: rain.") | {"reference": [None, ["wet"]]}, 1, ()),
        ("qa", question_row(1, "qa", "Who?") | {"reference": None}, 1, ()),
        ("spec_bench", question_row(1, "rag", "Read, then tell."), 1, ()),
    ],
)
def test_every_benchmark_is_named_by_its_file_and_belongs_to_a_domain(tmp_path, name, row, turns, reference):
    (question,) = load_questions(write(tmp_path / name / "question.jsonl", [row]))
    assert (question.suite, question.id, len(question.turns)) == (name, f"{name}-1", turns)
    assert question.domain == (BENCHMARKS[name] or SPEC_BENCH["rag"])
    assert question.reference == (("return 1",) if reference is None else reference)
    assert question.system == ""


def test_our_own_form_keeps_ids_domains_and_system_prompts(tmp_path):
    user, system = {"role": "user", "content": "one"}, {"role": "system", "content": "be brief"}
    write(
        tmp_path / "mt_bench.jsonl",
        [
            {"id": "a", "domain": "code", "messages": [user], "turns": ["one", "two"], "category": "", "source": "s"},
            {"id": "b", "domain": "math", "messages": [system, user, {"role": "user", "content": "two"}]},
        ],
    )
    first, second = load_questions(tmp_path, system="be kind")
    assert first == Question("a", "mt_bench", "mt_bench", "python", ("one", "two"), "be kind")
    assert second == Question("b", "mt_bench", "mt_bench", "math", ("one", "two"), "be brief")


def test_a_file_of_our_domain_is_called_as_the_domain(tmp_path):
    write(tmp_path / "code.jsonl", [{"id": "a", "messages": [{"role": "user", "content": "x"}]}])
    (question,) = load_questions(tmp_path)
    assert (question.suite, question.domain, question.column) == ("python", "python", "python")


def test_the_categories_of_mt_bench_form_one_of_spec_benchs_six_groups(tmp_path):
    questions = load_questions(write(tmp_path / "spec_bench.jsonl", spec_bench()))
    assert Counter(question.group for question in questions) == {
        name: 80 if name == "mt_bench" else 10 for name in SPEC_BENCH
    }
    assert {question.column for question in questions} == {f"spec_bench/{name}" for name in SPEC_BENCH}
    assert {question.domain for question in questions if question.group == "math_reasoning"} == {"math"}
    assert {question.domain for question in questions if question.category == "math"} == {"chat"}


def test_names_pick_files_in_their_order(tmp_path):
    for name in ("gsm8k", "qa", "sum"):
        write(tmp_path / f"{name}.jsonl", [question_row(1)])
    assert [question.suite for question in load_questions(tmp_path, names=["sum", "gsm8k"])] == ["cnn_dm", "gsm8k"]
    with pytest.raises(ConfigError, match=r"has no questions called 'humaneval'; it has gsm8k, qa, cnn_dm$"):
        load_questions(tmp_path, names=["qa", "humaneval"])


def test_data_sets_on_disk_and_of_the_hub_are_read_as_files_are(tmp_path, monkeypatch):
    rows = [{"prompt_id": 81, "category": "writing", "prompt": ["one", "two"], "reference": []}]
    table = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(str(tmp_path / "mt-bench"))
    (question,) = load_questions(tmp_path / "mt-bench")
    assert (question.id, question.suite, question.turns) == ("mt_bench-81", "mt_bench", ("one", "two"))
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"test": table}[{"org/mt_bench_prompts": "test"}[name]])
    assert load_questions("org/mt_bench_prompts") == [question]


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{oops", "found no JSON"),
        ('{"turns": ["one"]', r"found no JSON \(Expecting ',' delimiter at column 18\)"),
        ('["one"]', "found a list, wanted an object like"),
        ({"question_id": 3}, r"found no turns \(keys: question_id\), wanted"),
        (question_row(3) | {"turns": []}, "found no turns"),
        (question_row(3) | {"turns": {"a": 1}}, "found no turns"),
        (question_row(3) | {"turns": ["one", 2]}, "found 2 as turn 2, wanted text"),
        (question_row(3) | {"turns": [" "]}, "found ' ' as turn 1, wanted text"),
        (question_row(3) | {"category": 5}, "found category=5, wanted text"),
        (question_row(3) | {"domain": ["x"]}, r"found domain=\['x'\], wanted text"),
        (question_row(3) | {"question_id": [1]}, r"found the id \[1\], wanted text or a whole number"),
        ({"two\n\u2028lines": 1}, r"found no turns \(keys: two lines\), wanted"),
        (question_row(1), r"found the id 'gsm8k-1' a second time \(first in 1\)"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            "found an assistant message, wanted user turns only",
        ),
    ],
)
def test_a_mistake_is_one_line_with_file_and_line(tmp_path, line, reason):
    path = write(tmp_path / "gsm8k.jsonl", [question_row(1), "", line])
    with pytest.raises(ArtifactError, match=rf"gsm8k\.jsonl, line 3: {reason}") as caught:
        load_questions(path)
    assert "\n" not in str(caught.value)


def test_a_path_without_questions_says_what_to_give(tmp_path, monkeypatch):
    hint = "give a file, a folder of NAME.jsonl or NAME/question.jsonl, or a data set's hub id"
    (tmp_path / "empty").mkdir()
    write(tmp_path / "blank.jsonl", [""])
    for path, reason in (
        (tmp_path / "no" / "such.jsonl", "no question files at"),
        ("no/such.jsonl", "no question files at"),
        (tmp_path / "empty", "holds no question files"),
        (tmp_path / "blank.jsonl", "holds no questions"),
    ):
        with pytest.raises(ArtifactError, match=f"{reason}.*{hint}"):
            load_questions(path)

    def unreachable(*_):
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ArtifactError, match=f"^cannot read data set 'org/set': no route; {hint}$"):
        load_questions("org/set")
    with pytest.raises(ConfigError, match="limit must be 0"):
        load_questions(tmp_path / "blank.jsonl", limit=-1)


def test_a_benchmark_or_an_id_stands_in_one_file_only(tmp_path):
    write(tmp_path / "sum.jsonl", [question_row(1)])
    write(tmp_path / "cnn_dm" / "question.jsonl", [question_row(1)])
    with pytest.raises(ArtifactError, match=r"are both cnn_dm; keep one of them"):
        load_questions(tmp_path)
    (tmp_path / "sum.jsonl").unlink()
    write(tmp_path / "cnn_dm" / "question.jsonl", [{"id": "x", "turns": ["a"]}])
    write(tmp_path / "qa.jsonl", [{"id": "x", "turns": ["b"]}])
    with pytest.raises(ArtifactError, match=r"qa\.jsonl and .*question\.jsonl both have the id 'x'"):
        load_questions(tmp_path)


# --- limits --------------------------------------------------------------------------------------


def test_a_limit_takes_equally_many_questions_of_each_group_and_category(tmp_path):
    path = write(tmp_path / "spec_bench.jsonl", spec_bench())
    questions = load_questions(path, limit=48)
    assert Counter(question.group for question in questions) == dict.fromkeys(SPEC_BENCH, 8)
    assert Counter(question.category for question in questions if question.group == "mt_bench") == dict.fromkeys(
        MT_BENCH, 1
    )
    assert load_questions(path, limit=1000) == load_questions(path)
    assert (
        Counter(question.group for question in load_questions(path, limit=80))["mt_bench"] == 30
    )  # the other groups have 10 each


def test_the_seed_decides_the_questions_and_a_larger_limit_only_adds_some(tmp_path):
    path = write(tmp_path / "spec_bench.jsonl", spec_bench())
    questions = load_questions(path)
    selections = [load_questions(path, limit=count) for count in range(1, 40)]
    assert [len(selection) for selection in selections] == list(range(1, 40))
    assert all(set(less) < set(more) for less, more in pairwise(selections))
    assert all(
        selection == [q for q in questions if q in selection] for selection in selections
    )  # in the order of the file
    assert load_questions(path, limit=12) == selections[11]
    assert load_questions(path, limit=12, seed=1) != selections[11]


def test_a_limit_counts_for_every_file(tmp_path):
    for name in ("gsm8k", "qa"):
        write(tmp_path / f"{name}.jsonl", [question_row(n) for n in range(5)])
    assert Counter(question.suite for question in load_questions(tmp_path, limit=2)) == {"gsm8k": 2, "qa": 2}


# --- turns ---------------------------------------------------------------------------------------


def test_a_turn_follows_the_answers_of_the_target():
    question = Question("a", "mt_bench", "math", "chat", ("one", "two"))
    user = [{"role": "user", "content": turn} for turn in question.turns]
    assert turn_messages(question) == user[:1]
    answer = {"role": "assistant", "content": "first"}
    assert turn_messages(question, ["first"]) == [user[0], answer, user[1]]
    with pytest.raises(ValueError, match="question a has 2 turns, and 2 answers are given"):
        turn_messages(question, ["first", "second"])


def test_a_system_prompt_comes_before_every_turn():
    question = Question("a", "mt_bench", "math", "chat", ("one", "two"), system="be kind")
    for answers in ([], ["first"]):
        first, second, *_ = turn_messages(question, answers)
        assert (first, second["role"]) == ({"role": "system", "content": "be kind"}, "user")


def test_the_hash_of_questions_changes_with_what_is_asked_and_not_with_the_file_s_place(tmp_path):
    def digest(folder: str, **changes: object) -> str:
        row = {"id": "a", "messages": conversation("Be brief."), "turns": ["One?", "Two?"]}
        return questions_digest(load_questions(write(tmp_path / folder / "own.jsonl", [row | changes])))

    def conversation(system: str) -> list[dict]:
        return [{"role": "system", "content": system}, {"role": "user", "content": "One?"}]

    first = digest("first")
    assert digest("second", reference=["an answer"]) == first
    system = conversation("Be kind.")
    changed = [digest("x", id="b"), digest("y", turns=["One?", "Three?"]), digest("z", messages=system)]
    assert len({first, *changed}) == 4
