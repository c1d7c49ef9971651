"""vLLM streams answers with the features that Hugging Face's model has on the same text."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafterforge.data.answers import Answer, AnswerRows
from drafterforge.data.features import CachedCapture
from drafterforge.data.served import ServedCaptures, encode_served
from drafterforge.data.stream import DONE, StreamRecord, used_bytes
from drafterforge.errors import ArtifactError
from drafterforge.targets.capture import FeatureCapture
from tests.external.conftest import ROOT, Client
from tests.external.test_vllm import preload

pytestmark = pytest.mark.external
TAPS, NUM_TRAIN, NUM_VAL = (2, 15, 27), 12, 4
ENGINE = "data.vllm={enforce_eager: true, max_model_len: 1024, max_num_seqs: 4}"


@pytest.fixture(scope="module")
def vllm() -> Client:
    return Client("vllm").require_plugin()


def prepare(client: Client, folder: Path, *more: str, limit_gb: float = 1.0) -> subprocess.CompletedProcess:
    """Run `prepare-data data.stream=` where vLLM is."""
    command = [client.python, "-m", "drafterforge", "prepare-data", "domain=sql", f"data.stream={folder}", ENGINE]
    command += [f"data.stream_gb={limit_gb}", f"data.num_train={NUM_TRAIN}", f"data.num_val={NUM_VAL}"]
    command += ["data.num_test=2", "data.max_new_tokens=48", "target.dtype=float32", *more]
    env = client.env(PYTHONPATH=str(ROOT), VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1", **preload(client))
    cache = os.environ.get("DRAFTERFORGE_CACHE")
    env |= {"DRAFTERFORGE_CACHE": cache} if cache else {}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def ring(vllm, target_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stream") / "ring"
    done = prepare(vllm, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def rows(ring) -> list[Answer]:
    answers = [answer for shard in sorted(ring.glob("*.arrow")) for answer in AnswerRows([shard])]
    return [answer for answer in answers if answer.split != "test"]


def test_every_prompt_is_answered_once_and_greedily(ring, real):
    answers = [answer for shard in sorted(ring.glob("*.arrow")) for answer in AnswerRows([shard])]
    record = StreamRecord.read(ring)
    assert (ring / DONE).exists() and record.answers == len(answers) == NUM_TRAIN + NUM_VAL + 2
    assert len({answer.id for answer in answers}) == len(answers)
    assert used_bytes(ring) < record.limit_bytes
    for answer, capture in zip(answers, FeatureCapture(real)([a.input_ids for a in answers]), strict=True):
        taught = slice(answer.prompt_tokens - 1, len(answer.input_ids) - 1)
        assert capture.argmax[taught].tolist() == answer.input_ids[answer.prompt_tokens :]


def test_features_of_16_answers_are_those_of_hugging_face(ring, rows, target_folder, real, record_property):
    """Both are within float32's rounding: features reach 25,000, where neighbouring float32 numbers are 2e-3 apart.

    So the bound of a feature is relative to the largest activation of its row and tap, and in all no feature may be
    further from Hugging Face's float32 than that is from its float64.
    """
    models = [
        AutoModelForCausalLM.from_pretrained(target_folder, dtype=kind).eval()
        for kind in (torch.float32, torch.float64)
    ]
    worst = {"relative": 0.0, "absolute": 0.0, "states": 0.0, "hugging face's rounding": 0.0}
    assert len(rows) == 16
    captures = ServedCaptures(ring, FeatureCapture(real))
    for row, read in zip(rows, captures(rows), strict=True):
        ids = torch.tensor([row.input_ids[:-1]])
        with torch.no_grad():
            states, exact = (model.model(ids, output_hidden_states=True).hidden_states for model in models)
        taps, exact_taps = (torch.stack([layers[layer][0] for layer in TAPS], dim=1) for layers in (states, exact))
        assert read.features.dtype == torch.float32
        difference = (read.features[:-1].unflatten(1, (len(TAPS), -1)) - taps).abs()
        relative = difference / taps.abs().amax(dim=2, keepdim=True)
        for name, values in {
            "absolute": difference,
            "relative": relative,
            "states": read.states[:-1] - states[-1][0],
            "hugging face's rounding": taps - exact_taps,
        }.items():
            worst[name] = max(worst[name], float(values.abs().max()))
    record_property("largest differences", str(worst))
    print(worst)
    assert worst["relative"] <= 1e-4 and worst["states"] <= 1e-3
    assert worst["absolute"] <= worst["hugging face's rounding"]


@pytest.mark.parametrize("shift", [-1, 1])
def test_taps_that_are_off_by_one_are_refused(rows, real, tmp_path, shift):
    from drafterforge.data.served import ServedAnswer

    inputs = FeatureCapture(real).layer_inputs(rows[0].input_ids)
    features = torch.cat([inputs[layer + shift] for layer in TAPS], dim=1)
    capture: CachedCapture = FeatureCapture(real)([rows[0].input_ids])[0]
    files = encode_served([ServedAnswer(rows[0], features, capture.states)])
    for suffix, content in files.items():
        (tmp_path / f"shard{suffix}").write_bytes(content)
    low, mid, high = (layer + shift for layer in TAPS)
    with pytest.raises(
        ArtifactError, match=f"match the inputs of layers {low}, {mid} and {high}, but layers 2, 15 and"
    ):
        ServedCaptures(tmp_path, FeatureCapture(real))(rows[:1])


def test_a_finished_stream_is_not_answered_again_and_other_prompts_are_refused(vllm, ring):
    shards = StreamRecord.read(ring).shards
    assert prepare(vllm, ring).returncode == 0 and StreamRecord.read(ring).shards == shards
    done = prepare(vllm, ring, "seed=1")
    assert done.returncode == 2 and "streams other answers: its labels are" in done.stderr.splitlines()[-1]
