"""Traffic that a vLLM server recorded trains a drafter, without another pass of the target."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import SPLITS, AnswerSet
from drafterforge.data.features import FeatureSet
from drafterforge.data.served import served_rows
from drafterforge.interop.vllm.capture import Recorder, RecordSettings
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.load import load_target

pytestmark = pytest.mark.slow  # whole programs

NUM_REQUESTS, MAX_TOKENS, ROWS = 20, 12, 3  # committed rows of a cycle
TRAIN = ("train-drafter", "domain=traffic", "data=recorded", "experiment=smoke", "drafter=eagle3")


@pytest.fixture(scope="module")
def recording(tmp_path_factory, tiny_folder) -> Path:
    """A recording of greedy answers of the tiny target; the first prompt came from the prefix cache."""
    folder = tmp_path_factory.mktemp("recording")
    target = load_target(TargetConfig(name="tiny", source="hf", model=str(tiny_folder), dtype="float32"))
    prompts = [list(range(3 + number, 9 + 2 * number)) for number in range(NUM_REQUESTS)]
    answers = BatchAnswerer(target, 8)(prompts, MAX_TOKENS, 0)
    recorder = Recorder(RecordSettings(str(folder)), torch.device("cpu"))
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        name, ids = f"request-{number}", prompt + answer
        exact = FeatureCapture(target)([ids])[0]
        recorder.begin(name, prompt, MAX_TOKENS, target.eos_ids)
        bounds = [0 if number else 4, *range(len(prompt), len(ids) - 1, ROWS), len(ids) - 1]
        for start, end in itertools.pairwise(bounds):
            rows = torch.arange(start, end)
            ends, following = torch.tensor([end - start - 1]), torch.tensor([ids[end]])
            tokens, outputs = torch.tensor(ids)[rows], (exact.features[rows], exact.states[rows])
            recorder.cycle([name], torch.tensor([0]), ends, tokens, following, rows, *outputs)
        recorder.end([name])
    recorder.close()
    return folder


@pytest.fixture
def captured(monkeypatch) -> list[list[int]]:
    """The sequences that the target reads to capture features."""
    sequences: list[list[int]] = []
    real = FeatureCapture.__call__

    def capture(self: FeatureCapture, batch: list[list[int]]):
        sequences.extend(batch)
        return real(self, batch)

    monkeypatch.setattr(FeatureCapture, "__call__", capture)
    return sequences


def test_a_drafter_learns_from_recorded_answers_and_features(bench, recording, captured):
    done = bench(*TRAIN, f"path={recording}", "data.num_train=40", "data.num_val=40", "data.num_test=40")
    assert done.code == 0 and "training tokens (given)" in done.err, done.err
    texts = {row.transcript.ids: row.transcript for row in served_rows(recording)}
    assert len(texts) == NUM_REQUESTS
    answers = AnswerSet.open(bench.artifact("answers", "traffic"))
    rows = [row for split in SPLITS for row in answers.rows(split)]
    assert len(rows) == NUM_REQUESTS and {row.domain for row in rows} == {"traffic"}
    for row in rows:
        transcript = next(text for ids, text in texts.items() if list(ids[: len(row.input_ids)]) == row.input_ids)
        assert row.prompt_tokens == transcript.prompt_tokens and row.answer_tokens <= 8  # smoke's limit
        assert row.finished == (transcript.finished and len(row.input_ids) == len(transcript.ids))
    assert len(captured) <= 3  # two to check the target, and the prompt from the prefix cache
    features = FeatureSet.open(bench.artifact("features", "traffic"), answers.manifest.target_fingerprint)
    target = load_target(TargetConfig(name="tiny", source="hf", model=str(bench.target), dtype="float32"))
    for split in ("train", "val"):
        split_rows = answers.rows(split)
        exact = FeatureCapture(target)([row.input_ids for row in split_rows])
        for row, cached, computed in zip(
            split_rows, features.reader(split)([*range(len(split_rows))]), exact, strict=True
        ):
            read = slice(0, len(row.input_ids) - 1)
            torch.testing.assert_close(cached.features[read].float(), computed.features[read], rtol=2**-7, atol=1e-4)
            torch.testing.assert_close(cached.states[read].float(), computed.states[read], rtol=2**-7, atol=1e-4)
            taught = slice(row.prompt_tokens - 1, len(row.input_ids) - 1)
            assert torch.equal(cached.argmax[taught], computed.argmax[taught])
    report = json.loads((bench.artifact("reports", "traffic") / "report.json").read_text())
    assert all(row["mismatches"] == 0 for row in report["rows"])


def test_recordings_of_another_target_are_refused(bench, recording, other_folder):
    line = bench("prepare-data", *TRAIN[1:4], f"path={recording}", target=other_folder).one_line()
    assert "was recorded with another target: its features and states differ" in line
    done = bench(
        "prepare-data", *TRAIN[1:4], f"path={recording}", "data.features=online", "name=texts", target=other_folder
    )
    assert done.code == 0, done.err


def test_mistakes_are_one_line(bench, tmp_path):
    assert "data=recorded needs a recording: type path=FOLDER" in bench(*TRAIN).one_line()
    assert "holds no recorded answers" in bench(*TRAIN, f"path={tmp_path}").one_line()
    assert "there is no such file or folder" in bench(*TRAIN, f"path={tmp_path / 'none'}").one_line()
    line = bench(*TRAIN, f"path={tmp_path}", "data.answers=target").one_line()
    assert "data=recorded has the recorded answers; type data.answers=given" in line
