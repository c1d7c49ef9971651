"""Cached features are the target's in half precision, and capture resumes; online ones are computed on each read."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from drafterforge.artifacts import folder
from drafterforge.artifacts.staging import drop_staging, staging_folder
from drafterforge.config.data import DataConfig
from drafterforge.data import features
from drafterforge.data.answering import prepare_answers
from drafterforge.data.answers import AnswerSet
from drafterforge.data.features import FeatureSet, OnlineFeatures, prepare_features
from drafterforge.data.prompts import Prompt
from drafterforge.errors import ArtifactError
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.capture import FeatureCapture
from tests.models import tiny_target
from tests.tiny import TINY

pytestmark = pytest.mark.slow  # many short tests

COUNTS = {"train": 9, "val": 3, "test": 2}
CONFIG = {"taps": [2, 2, 2]}


class Killed(BaseException):
    """Ends the run as a signal would: no code catches it."""


@pytest.fixture(scope="module")
def target(chatml):
    ids = {"eos_token_id": chatml.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    return tiny_target(vocab_size=len(chatml), **ids)


@pytest.fixture(scope="module")
def answers(chatml, target, tmp_path_factory) -> AnswerSet:
    def prompt(split: str, i: int) -> Prompt:
        message = {"role": "user", "content": f"{split} {'x' * (i * 5 % 13)} {i}"}
        return Prompt(f"sql-{split}-{i}", "sql", f"task {i}", (message,), "grammar")

    return prepare_answers(
        {split: [prompt(split, i) for i in range(count)] for split, count in COUNTS.items()},
        tokenizer=chatml,
        generate=BatchAnswerer(target, 4),
        data=DataConfig(max_new_tokens=8, shard_size=4),
        path=tmp_path_factory.mktemp("answers") / "sql",
        target=TINY,
        config={},
        seed=0,
        eos_ids=target.eos_ids,
    )


class Capture:
    """Captures the target's features of answers; the call `kill_at` raises `Killed`."""

    def __init__(self, target, kill_at: int | None = None) -> None:
        self.capture, self.kill_at, self.calls = FeatureCapture(target), kill_at, 0

    def __call__(self, rows):
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed
        return self.capture([row.input_ids for row in rows])


@pytest.fixture
def prepare(answers, target, tmp_path):
    def run(capture: Capture | None = None, name: str = "sql", **options) -> FeatureSet:
        settings = {"target": TINY, "config": CONFIG, "shard_rows": 4, **options}
        return prepare_features(answers, capture or Capture(target), path=tmp_path / name, **settings)

    yield run
    for name in os.listdir(tmp_path):
        drop_staging(tmp_path / name.removeprefix(".").removesuffix(".partial"))


def content(features: FeatureSet) -> dict[str, bytes]:
    return {name: (features.path / name).read_bytes() for name in features.manifest.files}


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_cache_holds_the_targets_features_in_bfloat16(answers, target, prepare, split):
    read = prepare().reader(split)
    rows = answers.rows(split)
    order = [*range(len(rows))][::-1]
    expected = FeatureCapture(target)([rows[i].input_ids for i in order])
    for cached_row, exact in zip(read(order), expected, strict=True):
        assert cached_row.features.dtype == cached_row.states.dtype == torch.bfloat16
        assert cached_row.argmax.dtype == torch.int64
        # the passes differ in their padding, so a value may round to the neighbour
        torch.testing.assert_close(cached_row.features.float(), exact.features, rtol=2**-7, atol=1e-5)
        torch.testing.assert_close(cached_row.states.float(), exact.states, rtol=2**-7, atol=1e-5)
        assert torch.equal(cached_row.argmax, exact.argmax)


@pytest.mark.parametrize("split", ["train", "val"])
def test_online_features_equal_cached_ones_up_to_bfloat16(answers, target, prepare, split):
    cached = prepare().reader(split)([2, 0])
    online = OnlineFeatures(answers, FeatureCapture(target)).reader(split)([2, 0])
    for cached_row, online_row in zip(cached, online, strict=True):
        torch.testing.assert_close(cached_row.features.float(), online_row.features, rtol=2**-7, atol=1e-5)
        torch.testing.assert_close(cached_row.states.float(), online_row.states, rtol=2**-7, atol=1e-5)
        assert torch.equal(cached_row.argmax, online_row.argmax)


def test_shards_hold_their_rows_and_test_prompts_are_left_out(prepare, answers):
    done = []
    features = prepare(progress=lambda *numbers: done.append(numbers))
    shards = ["train-00000", "train-00001", "train-00002", "val-00000"]
    assert sorted(features.manifest.files) == ["index.json", *(f"{shard}.safetensors" for shard in shards)]
    assert [[len(shard) for shard in features.index[split].lengths] for split in ("train", "val")] == [
        [4, 4, 1],
        [3],
    ]
    total = sum(int(answers.rows(split).lengths.sum()) for split in ("train", "val"))
    assert done[-1] == (total, total) and features.manifest.metrics == {"tokens": total}
    assert features.manifest.parents == [answers.manifest.as_parent()]


@pytest.mark.parametrize("kill_at", [1, 2, 4])
def test_a_killed_capture_resumes_after_its_last_shard(prepare, target, kill_at, tmp_path):
    complete = content(prepare(name="complete"))
    with pytest.raises(Killed):
        prepare(Capture(target, kill_at))
    assert not (tmp_path / "sql").exists()
    rest = Capture(target)
    assert content(prepare(rest)) == complete
    assert rest.calls == 4 - (kill_at - 1)
    assert not staging_folder(tmp_path / "sql").exists()


@pytest.mark.parametrize("damage", [0, 20, -3])
def test_a_shard_that_a_kill_truncated_is_captured_again(prepare, target, tmp_path, damage):
    complete = content(prepare(name="complete"))
    with pytest.raises(Killed):
        prepare(Capture(target, 3))
    shard = staging_folder(tmp_path / "sql") / "train-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:damage])
    assert content(prepare()) == complete


def test_a_shard_is_written_atomically(prepare, monkeypatch, tmp_path):
    real = features.save_file

    def cut(tensors, path, **options):
        real(tensors, path, **options)
        path.write_bytes(path.read_bytes()[:50])
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(features, "save_file", cut)
        prepare()
    assert not list(staging_folder(tmp_path / "sql").glob("[!.]*.safetensors"))
    assert content(prepare()) == content(prepare(name="complete"))


def test_a_finished_capture_is_not_repeated(prepare, target):
    prepare()
    again = Capture(target)
    prepare(again)
    assert again.calls == 0


def test_a_finished_capture_is_not_hashed_again(prepare, monkeypatch):
    prepare()
    monkeypatch.setattr(folder, "file_sha256", lambda path: pytest.fail(f"hashes {path}"))
    prepare()


def test_the_captures_of_a_few_answers_are_on_the_device_at_a_time(prepare, target, monkeypatch):
    monkeypatch.setattr(features, "ROWS_ON_DEVICE", 4)
    sizes, capture = [], Capture(target)

    def count(rows):
        sizes.append(len(rows))
        return capture(rows)

    lengths = prepare(count, shard_rows=9).index["train"].lengths
    assert sizes == [4, 4, 1, 3] and [len(shard) for shard in lengths] == [9]


def test_features_of_another_target_are_refused(prepare):
    features = prepare()
    with pytest.raises(ArtifactError, match=r"fingerprint f00d, but target 'tiny' has fingerprint beef"):
        FeatureSet.open(features.path, "beef")
    with pytest.raises(ArtifactError, match=r"fingerprint f00d, .* has fingerprint beef"):
        prepare(target=SimpleNamespace(name="tiny", fingerprint="beef"))


def test_features_of_other_settings_are_refused_unless_overwritten(prepare, target):
    prepare()
    with pytest.raises(
        ArtifactError,
        match=r"made with other settings \(taps: .*overwrite=true .*, or data\.features=online to keep it",
    ):
        prepare(config={"taps": [2, 3, 4]})
    capture = Capture(target)
    prepare(capture, config={"taps": [2, 3, 4]}, overwrite=True)
    assert capture.calls == 4


def test_a_full_disk_is_one_line(prepare, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(features, "save_file", full)
    with pytest.raises(ArtifactError, match=r"the disk is full: cannot write .*train-00000\.safetensors"):
        prepare()
