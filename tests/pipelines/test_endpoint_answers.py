"""Answers of our own server, over HTTP, are those that the target gives in the process that trains on them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import SPLITS, AnswerSet
from drafterforge.runtime.engine import Engine
from drafterforge.targets.load import load_target
from tests.pipelines.conftest import TRAIN
from tests.server.conftest import Serving, serving

pytestmark = pytest.mark.slow  # whole programs

PREPARE = ("prepare-data", "domain=sql", "experiment=smoke")
TEXTS = "data.features=online"


@pytest.fixture(scope="module")
def server(tiny_folder) -> Iterator[Serving]:
    target = load_target(TargetConfig(name="tiny", source="hf", model=str(tiny_folder), dtype="float32"))
    with serving(Engine(target)) as up:
        yield up


@pytest.fixture
def served(server) -> tuple[str, str]:
    return "data.answers=served", f"data.endpoint={server.url}"


def rows_of(folder: Path) -> dict[str, list]:
    answers = AnswerSet.open(folder)
    return {split: list(answers.rows(split)) for split in SPLITS}


@pytest.fixture
def weightless(tiny_folder, tmp_path) -> Path:
    """A folder with config and tokenizer of the target."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "texts", ignore=shutil.ignore_patterns("*.safetensors")))


@pytest.fixture
def retrained(weightless, other_folder, tmp_path) -> Path:
    """Other weights with the same config and tokenizer."""
    folder = Path(shutil.copytree(weightless, tmp_path / "retrained"))
    shutil.copy(other_folder / "model.safetensors", folder)
    return folder


def test_answers_equal_those_of_the_process_and_a_drafter_learns_from_them(bench, served):
    assert bench(*PREPARE, TEXTS, "name=local").code == 0
    done = bench(*TRAIN, *served)
    assert done.code == 0, done.err
    assert rows_of(bench.artifact("answers")) == rows_of(bench.artifact("answers", "local"))
    assert "tokens/s" in done.err and "training tokens" in done.err
    again = bench(*PREPARE, "data.answers=served", "data.endpoint=http://127.0.0.1:9")  # nothing is asked again
    assert again.code == 0 and "(made before)" in again.err


def test_sampled_answers_come_again_with_the_same_seed(bench, served):
    for name in ("first", "second"):
        assert bench(*PREPARE, TEXTS, *served, "data.temperature=1.0", f"name={name}").code == 0
    assert rows_of(bench.artifact("answers", "first")) == rows_of(bench.artifact("answers", "second"))
    assert bench(*PREPARE, TEXTS, *served, "data.temperature=1.0", "seed=1", "name=third").code == 0
    assert rows_of(bench.artifact("answers", "first")) != rows_of(bench.artifact("answers", "third"))


def test_a_server_of_another_model_is_refused(bench, served, other_folder):
    line = bench(*PREPARE, TEXTS, *served, target=other_folder).one_line()
    assert "serves tiny, which is not this target" in line and "type target= as it is served" in line
    assert bench.finished() == []


def test_a_target_without_weights_is_confirmed_by_name_and_checked_where_they_are(bench, served, weightless, retrained):
    line = bench(*PREPARE, *served, target=weightless).one_line()
    assert "has no *.safetensors" in line and "type data.features=online" in line
    line = bench(*PREPARE, TEXTS, *served, target=weightless).one_line()
    assert "type data.served_model=tiny" in line
    done = bench(*PREPARE, TEXTS, *served, "data.served_model=tiny", target=weightless)
    assert done.code == 0, done.err
    assert bench(*PREPARE, TEXTS, "name=local").code == 0
    assert rows_of(bench.artifact("answers")) == rows_of(bench.artifact("answers", "local"))
    assert bench(*TRAIN, "answers=sql", "name=mine").code == 0
    line = bench(*TRAIN, "answers=sql", "name=theirs", target=retrained).one_line()
    assert "was answered by a server of another model than tiny" in line


def test_mistakes_are_one_line(bench):
    assert "type data.endpoint=http://HOST:PORT/v1" in bench(*PREPARE, "data.answers=served").one_line()
    line = bench(*PREPARE, "data.answers=served", "data.endpoint=http://127.0.0.1:9").one_line()
    assert "no server answers at http://127.0.0.1:9/v1" in line
