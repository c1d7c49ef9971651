"""`train-drafter data.stream=FOLDER` trains on a stream like on answers of its own; mistakes are one line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answering import encode_prompts
from drafterforge.data.answers import AnswerSet
from drafterforge.data.prompts import load_prompts
from drafterforge.data.served import ServedAnswer
from drafterforge.data.stream import StreamWriter, finish_stream, readers_finished, used_bytes
from drafterforge.errors import ArtifactError
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.load import load_target
from drafterforge.training.jobs import DrafterRun
from tests.pipelines.conftest import Bench

pytestmark = pytest.mark.slow  # whole programs

TRAIN = ("train-drafter", "domain=sql", "experiment=smoke", "drafter=eagle3")
TAPS = (2, 3, 4)


def fill(folder: Path, target_folder: Path, taps=TAPS, labelled: bool = True) -> Path:
    """What `prepare-data data.stream=` writes for smoke's prompts, with transformers instead of vLLM."""
    target = load_target(TargetConfig(name="tiny", source="hf", model=str(target_folder), dtype="float32"))
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()
    seen: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0][0]))
    data = DataConfig(num_train=8, num_val=4, num_test=4, max_new_tokens=8)
    prompts, held_out = load_prompts(data, DomainConfig(), 0), {"val": 4, "test": 4}
    writer = StreamWriter(folder, 50_000_000, taps, held_out=held_out if labelled else {})
    conversations = [
        c for split in ("val", "test", "train") for c in encode_prompts(target.tokenizer, split, prompts, data)
    ]
    for number, conversation in enumerate(conversations):
        (answer,) = BatchAnswerer(target, 1)([conversation.ids], 8, 0)
        conversation.add_answer(answer, "", False)
        row = conversation.answer()
        with torch.no_grad():
            states = model.model(torch.tensor([row.input_ids[:-1]]), output_hidden_states=True).hidden_states
        features = torch.cat([states[layer][0] for layer in taps], dim=1)
        writer.add(number, ServedAnswer(row, features, outputs=seen.pop()))
    writer.close(30)
    finish_stream(folder)
    return folder


def test_a_stream_trains_validates_and_is_emptied(bench: Bench, tmp_path):
    ring = fill(tmp_path / "ring", bench.target)
    done = bench(*TRAIN, f"data.stream={ring}")
    assert done.code == 0, done.err
    assert used_bytes(ring) == 0 and readers_finished(ring)
    answers = AnswerSet.open(bench.artifact("answers"))
    assert [len(answers.rows(split)) for split in ("train", "val", "test")] == [8, 4, 4]
    direct = bench("prepare-data", "domain=sql", "experiment=smoke", "name=direct")
    assert direct.code == 0, direct.err
    for split in ("val", "test"):
        exact = AnswerSet.open(bench.artifact("answers", "direct")).rows(split)
        assert sorted(row.input_ids for row in answers.rows(split)) == sorted(row.input_ids for row in exact)
    report = json.loads((bench.artifact("reports") / "report.json").read_text())
    assert all(row["mismatches"] == 0 for row in report["rows"])
    manifest = json.loads((bench.artifact("drafters") / "manifest.json").read_text())
    assert manifest["config"]["features"] == "streamed" and manifest["metrics"]["val_prompts"] == 4
    assert "was trained before" in bench(*TRAIN, f"data.stream={ring}").err
    line = bench(*TRAIN, f"data.stream={ring}", "data.stream_epochs=2").one_line()
    assert "was made with other settings (stream_epochs: null there, 2 now)" in line
    line = bench(*TRAIN, f"data.stream={ring}", "trainer.lr=5e-4", "overwrite=true").one_line()
    assert "sql has read the first" in line and "type data.stream=OTHER here and for prepare-data" in line
    shutil.rmtree(bench.artifact("answers"))
    line = bench(*TRAIN, f"data.stream={ring}", "overwrite=true").one_line()
    assert "sql has read the first" in line


def test_a_stream_is_needed_until_the_drafter_is_written(bench: Bench, tmp_path, monkeypatch):
    def fail(*args) -> None:
        raise ArtifactError("the disk is full")

    ring = fill(tmp_path / "ring", bench.target)
    with monkeypatch.context() as patch:
        patch.setattr(DrafterRun, "write", fail)
        assert "the disk is full" in bench(*TRAIN, f"data.stream={ring}").one_line()
    assert not readers_finished(ring)
    done = bench(*TRAIN, f"data.stream={ring}")
    assert done.code == 0, done.err
    assert readers_finished(ring)


def test_traffic_of_a_server_holds_out_its_first_answers(bench: Bench, tmp_path):
    ring = fill(tmp_path / "ring", bench.target, labelled=False)
    done = bench(*TRAIN, f"data.stream={ring}", "data.num_val=3", "data.num_test=2")
    assert done.code == 0, done.err
    answers = AnswerSet.open(bench.artifact("answers"))
    assert [len(answers.rows(split)) for split in ("train", "val", "test")] == [11, 3, 2]


def test_taps_that_are_off_by_one_end_before_a_step(bench: Bench, tmp_path):
    ring = fill(tmp_path / "ring", bench.target, taps=(1, 2, 3))
    line = bench(*TRAIN, f"data.stream={ring}").one_line()
    assert "match the inputs of layers 1, 2 and 3, but layers 2, 3 and 4 were expected" in line
    assert "drafters" not in "".join(bench.finished()) and used_bytes(ring) > 0
    done = bench(*TRAIN, f"data.stream={ring}", "target.taps=[1,2,3]", "overwrite=true")
    assert done.code == 0, done.err


def test_mistakes_are_one_line(bench: Bench, tmp_path, monkeypatch):
    ring = f"data.stream={tmp_path / 'ring'}"
    (tmp_path / "FILE").touch()
    lines = {
        "leave out answers=": (*TRAIN, ring, "answers=sql"),
        "trainer.num_answers= is not read with data.stream=": (*TRAIN, ring, "trainer.num_answers=3"),
        "leave out data.features=online": (*TRAIN, ring, "data.features=online"),
        "data.vllm= is read with data.stream=FOLDER only": (*TRAIN, "data.vllm={seed: 1}"),
        "data.stream_gb must be > 0": (*TRAIN, ring, "data.stream_gb=0"),
        "which drafter=retrieval does not read": (*TRAIN[:3], ring, "drafter=retrieval"),
        "data.stream= is read by prepare-data and train-drafter only": ("quickstart", ring),
    }
    for expected, command in lines.items():
        assert expected in bench(*command).one_line()
    monkeypatch.setitem(sys.modules, "vllm", None)
    line = bench("prepare-data", "domain=sql", ring).one_line()
    assert "data.stream= answers with vLLM, which cannot be imported here" in line
    shutil.rmtree(tmp_path / "ring", ignore_errors=True)
