"""Prompts: three disjoint splits from any source, and one line of error for what is wrong."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path

import pytest

from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.data.prompts import SPLITS, capped_shares, load_prompts, prompt_text, shares
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.prompts import grammar as grammar_module
from drafterforge.prompts.grammar import Draw

SQL = DomainConfig(name="sql")


def write_lines(path: Path, rows: list) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def load(path: Path, domain: DomainConfig = SQL, seed: int = 0, **options):
    return load_prompts(DataConfig(source="jsonl", path=str(path), **options), domain, seed)


def texts(prompts) -> dict[str, list[str]]:
    return {split: [prompt_text(p) for p in prompts[split]] for split in SPLITS}


# --- grammars ------------------------------------------------------------------------------------


@pytest.fixture
def grammar(monkeypatch):
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
    found = texts(load_prompts(DataConfig(num_train=9, num_val=5, num_test=3), SQL, 0))
    assert found == {
        "test": ["ask 0", "ask 1", "ask 2"],
        "val": ["ask 3", "ask 4"],
        "train": ["ask 5", "ask 6", "ask 7", "ask 8"],
    }


def test_a_domain_without_grammar_says_what_to_type():
    with pytest.raises(ConfigError, match=r"domain=medical .* data=jsonl path=FILE.jsonl or data=hf"):
        load_prompts(DataConfig(), DomainConfig(name="medical", grammar=False), 0)
    with pytest.raises(ConfigError, match=r"grammar has no answers"):
        load_prompts(DataConfig(answers="given"), SQL, 0)


# --- JSONL ---------------------------------------------------------------------------------------


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
    prompts = {p.id: p for split in load(path).values() for p in split}
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
    assert prompts["sql-000006"].messages[0]["content"] == "six"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"messages": [', "no JSON"),
        ("hello", "no JSON"),
        ("[1, 2]", "a list, wanted an object"),
        ('{"text": "hi"}', r"no messages \(keys: text\), wanted 'messages', 'turns' or 'prompt'"),
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
    ],
)
def test_a_bad_jsonl_line_is_named_with_file_and_number(tmp_path, line, found):
    path = tmp_path / "a.jsonl"
    line = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b'{"prompt": "fine"}\n\n' + line + b"\n")
    with pytest.raises(ArtifactError, match=rf"a\.jsonl, line 3: found .*{found}") as error:
        load(path)
    assert "\n" not in str(error.value)


def test_missing_empty_and_tiny_files_are_one_line(tmp_path):
    with pytest.raises(ArtifactError, match=r"cannot read .*none\.jsonl: No such file.*path=FILE"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(ArtifactError, match=r"holds no \*\.jsonl; type data=jsonl path=FILE"):
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
    found = texts(load(write_lines(tmp_path / "a.jsonl", rows)))
    assert sorted(found["train"]) == [f"ask {i}" for i in range(6)]
    assert sorted(found["val"]) == ["ask 6", "ask 7", "ask 8"]
    assert found["test"] == ["held out"]


@pytest.mark.parametrize("number", [3, 4, 5, 10, 40])
def test_a_small_file_gives_every_split_something_and_says_so(tmp_path, caplog, number):
    rows = [{"prompt": f"ask {i}", "split": "train"} for i in range(number)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with caplog.at_level(logging.WARNING):
        found = texts(load(path))
    assert all(found.values())
    assert len({text for split in found.values() for text in split}) == number
    assert "has no val prompts" in caplog.text and "has no test prompts" in caplog.text
    assert found == texts(load(path))


def test_an_empty_split_is_given_whole_tasks_where_there_are_several(tmp_path, caplog):
    rows = [{"prompt": f"{i}", "task": f"task {i % 5}", "split": "train"} for i in range(50)]
    prompts = load(write_lines(tmp_path / "a.jsonl", rows))
    tasks = [{p.task for p in prompts[split]} for split in SPLITS]
    assert all(tasks) and sum(map(len, tasks)) == 5
    rows = [{"prompt": f"{i}", "task": "one", "split": "train"} for i in range(50)]
    prompts = load(write_lines(tmp_path / "a.jsonl", rows))
    assert all(prompts.values()) and "the two share tasks" in caplog.text


# --- data sets -----------------------------------------------------------------------------------


def load_hf(dataset, **options):
    data = DataConfig(source="hf", dataset=str(dataset), **options)
    return load_prompts(data, DomainConfig(name="sql", column="own_column"), 0)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The same rows as a folder of JSONL, of Parquet, and as saved by `save_to_disk`."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    rows = [
        {
            "question": f"ask {i}",
            "messages": [{"role": "user", "content": f"say {i}"}],
            "group": f"{i}",
        }
        for i in range(60)
    ]
    rows[7]["question"] = None
    made = {name: tmp_path / name for name in ("jsonl", "parquet", "saved")}
    for name in ("jsonl", "parquet"):
        made[name].mkdir()
    write_lines(made["jsonl"] / "train.jsonl", rows)
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(str(made["parquet"] / "train.parquet"))
    table.save_to_disk(str(made["saved"]))
    made["file"] = made["parquet"] / "train.parquet"
    return made


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved", "file"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_local_data_set_gives_strings_or_messages(folders, kind, streaming, caplog):
    prompts = load_hf(folders[kind], column="question", streaming=streaming)
    everything = sorted(text for split in texts(prompts).values() for text in split)
    assert everything == sorted(f"ask {i}" for i in range(60) if i != 7)
    assert "dropped 1 rows" in caplog.text
    assert prompts == load_hf(folders[kind], column="question", streaming=streaming)
    prompts = load_hf(folders[kind], streaming=streaming)  # messages, found by its name
    assert prompt_text(prompts["train"][0]).startswith("say ") and prompts["train"][0].task


def test_a_stream_is_read_no_further_than_needed(monkeypatch):
    datasets = pytest.importorskip("datasets")
    read = []

    def rows():
        for i in range(100_000):
            read.append(i)
            yield {"prompt": f"ask {i}"}

    stream = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: stream)
    monkeypatch.setattr("drafterforge.data.sources.SHUFFLE_BUFFER", 10)
    prompts = load_hf("some/set", num_train=5, num_val=2, num_test=2)
    assert [len(prompts[split]) for split in SPLITS] == [5, 2, 2]
    assert len(read) < 2000


def test_a_missing_column_data_set_or_split_is_one_line(folders, monkeypatch):
    import datasets

    folder = folders["jsonl"]
    with pytest.raises(ArtifactError, match="no column 'nope'; type column= one of question, mess"):
        load_hf(folder, column="nope")
    with pytest.raises(ArtifactError, match=r"cannot read data set .*dog"):
        load_hf(folder, column="question", dataset_split="dog")
    with pytest.raises(ArtifactError, match="no data set at /no/such; type data=hf dataset=FOLDER"):
        load_hf("/no/such")
    with pytest.raises(ConfigError, match="domain=sql has no default data set"):
        load_hf("")

    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach the hub\nwith a long story")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ArtifactError, match="'org/set': Couldn't reach the hub; check") as error:
        load_hf("org/set")
    assert "\n" not in str(error.value)


def test_a_dotted_column_reaches_into_a_record(tmp_path):
    pytest.importorskip("datasets")
    rows = [{"translation": {"de": f"sage {i}", "en": f"say {i}"}} for i in range(30)]
    write_lines(tmp_path / "train.jsonl", rows)
    prompts = load_hf(tmp_path, column="translation.de")
    assert sorted(text for split in texts(prompts).values() for text in split) == sorted(f"sage {i}" for i in range(30))
    with pytest.raises(ArtifactError, match=r"no column 'translation\.fr'"):
        load_hf(tmp_path, column="translation.fr")


def asked(prompts) -> list[str]:
    return sorted(text for found in texts(prompts).values() for text in found)


def licensed(folder):
    folder.mkdir()
    lines = [{"prompt": f"Question {n}.", "licence": name} for n, name in enumerate(["MIT", "CC-BY-4.0", "mit (own)"])]
    write_lines(folder / "a.jsonl", [json.dumps(line) for line in lines])
    more = [{"prompt": f"Other {n}."} | ({"license": "MIT"} if n else {}) for n in range(3)]
    write_lines(folder / "b.jsonl", [json.dumps(line) for line in more])
    return folder


def test_a_folder_is_read_whole_and_lines_of_other_licences_are_left_out(tmp_path, caplog):
    folder = licensed(tmp_path / "prompts")
    assert len(asked(load(folder))) == 6
    assert asked(load(folder, licences=["MIT"])) == ["other 1.", "other 2.", "question 0.", "question 2."]
    assert "dropped 2 lines of other licences (CC-BY-4.0 1, none 1)" in caplog.text
    with pytest.raises(ArtifactError, match=r"no lines of data.licences=\[BSD\]; found: MIT 3, .*none 1"):
        load(folder, licences=["BSD"])


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
    prompts = [p for split in load(path, domain_names={"code": "python"}).values() for p in split]
    assert Counter(p.domain for p in prompts) == {"python": 30, "math": 30, "sql": 30}  # without: as the command's
    assert {p.messages[0]["content"].split()[0] for p in prompts if p.domain == "python"} == {"code"}
    assert caplog.text == ""
    load(path, domain_names={"cod": "python"})
    assert "data.domain_names renames cod, but" in caplog.text and "has only code, math, sql" in caplog.text


def test_a_mixture_of_a_file_s_domains_is_even_and_the_others_fill_up(tmp_path):
    path = of_domains(tmp_path / "a.jsonl", sql=900, code=400, math=40)
    options = {"domain_names": {"code": "python"}, "num_train": 300, "num_val": 9, "num_test": 3}
    prompts = load(path, GENERAL, **options)
    counts = {split: Counter(p.domain for p in prompts[split]) for split in SPLITS}
    few = counts["train"]["math"]  # those of 40 that are not held out
    assert 30 < few < 40 and counts["train"]["sql"] + counts["train"]["python"] == 300 - few
    assert abs(counts["train"]["sql"] - counts["train"]["python"]) <= 1
    assert {split: len(prompts[split]) for split in SPLITS} == {"train": 300, "val": 9, "test": 3}
    assert counts["test"] == {"sql": 1, "python": 1, "math": 1}
    first = Counter(p.domain for p in prompts["train"][:60])
    assert all(abs(first[name] - counts["train"][name] / 5) <= 1 for name in first)
    assert prompts == load(path, GENERAL, **options) != load(path, GENERAL, seed=1, **options)


def test_weights_of_a_mixture_are_those_of_a_file_s_domains(tmp_path):
    path = of_domains(tmp_path / "a.jsonl", sql=600, python=600)
    domain = DomainConfig(name="general", weights={"sql": 3.0, "python": 1.0})
    assert Counter(p.domain for p in load(path, domain, num_train=100)["train"]) == {"sql": 75, "python": 25}


def test_domains_without_a_weight_are_left_out_and_told(tmp_path, caplog):
    path = of_domains(tmp_path / "a.jsonl", sql=50, code=20, chat=9, none=5)
    prompts = load(path, GENERAL)
    assert {p.domain for split in prompts.values() for p in split} == {"sql"}
    assert "dropped 34 lines of domains without a weight (code 20, chat 9, none 5)" in caplog.text
    assert "type data.domain_names={code: OURS}, or domain.weights.code=1" in caplog.text


def test_a_file_without_the_mixture_s_domains_is_taken_as_it_is(tmp_path, caplog):
    path = of_domains(tmp_path / "a.jsonl", support=200, none=200)
    prompts = [p for split in load(path, GENERAL).values() for p in split]
    assert Counter(p.domain for p in prompts) == {"support": 200, "general": 200} and caplog.text == ""


def test_no_share_exceeds_what_its_domain_holds_and_none_is_wasted():
    weights = {"a": 1.0, "b": 2.0, "c": 1.0}
    assert capped_shares({"a": 100, "b": 100, "c": 100}, weights, 40) == {"a": 10, "b": 20, "c": 10}
    assert capped_shares({"a": 3, "b": 100, "c": 100}, weights, 39) == {"a": 3, "b": 24, "c": 12}
    assert capped_shares({"a": 3, "b": 20, "c": 100}, weights, 39) == {"a": 3, "b": 20, "c": 16}
    assert capped_shares({"a": 3, "b": 0, "c": 5}, weights, 39) == {"a": 3, "b": 0, "c": 5}


def test_a_grammar_has_no_names_of_domains():
    with pytest.raises(ConfigError, match=r"data\.domain_names= is read by data=jsonl only.*type data=jsonl"):
        DataConfig(domain_names={"code": "python"})


def test_a_grammar_has_no_licences():
    with pytest.raises(ConfigError, match=r"data\.licences= is read by data=jsonl only"):
        DataConfig(licences=["MIT"])
