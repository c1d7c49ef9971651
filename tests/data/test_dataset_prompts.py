"""Prompts of data sets on disk and of the hub."""

from __future__ import annotations

import pytest

from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.data.prompts import SPLITS, load_prompts, prompt_text
from drafterforge.errors import ArtifactError, ConfigError
from tests.data.prompt_files import texts, write_lines


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
    paths = {name: tmp_path / name for name in ("jsonl", "parquet", "saved")}
    for name in ("jsonl", "parquet"):
        paths[name].mkdir()
    write_lines(paths["jsonl"] / "train.jsonl", rows)
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(str(paths["parquet"] / "train.parquet"))
    table.save_to_disk(str(paths["saved"]))
    paths["file"] = paths["parquet"] / "train.parquet"
    return paths


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved", "file"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_local_data_set_gives_strings_or_messages(folders, kind, streaming, caplog):
    prompts = load_hf(folders[kind], column="question", streaming=streaming)
    everything = sorted(text for split in texts(prompts).values() for text in split)
    assert everything == sorted(f"ask {i}" for i in range(60) if i != 7)
    assert "dropped 1 rows of" in caplog.text and "column question is no prompt, such as number " in caplog.text
    assert "found a NoneType, wanted text or a list of messages" in caplog.text
    assert prompts == load_hf(folders[kind], column="question", streaming=streaming)
    prompts = load_hf(folders[kind], streaming=streaming)  # without column=, the column named messages is read
    assert prompt_text(prompts["train"][0]).startswith("say ") and prompts["train"][0].task


def test_a_template_puts_each_text_into_a_prompt(folders):
    folder = folders["jsonl"]
    prompts = load_hf(folder, column="question", template="Sum up {text} in {n} words: {text}")
    requests = {text for split in texts(prompts).values() for text in split}
    assert requests == {f"sum up ask {i} in {{n}} words: ask {i}" for i in range(60) if i != 7}
    assert prompt_text(load_hf(folder, template="Sum up {text}")["train"][0]).startswith("say ")  # messages as they are
    domain = DomainConfig(name="sql", dataset=str(folder), column="question", template="Answer: {text}")
    prompts = load_prompts(DataConfig(source="hf"), domain, 0)
    assert prompt_text(prompts["train"][0]).startswith("answer: ask ")
    prompts = load_prompts(DataConfig(source="hf", dataset=str(folder), column="question"), domain, 0)
    assert prompt_text(prompts["train"][0]).startswith("ask ")


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
