"""An export converted to OpenVINO gives our logits, and OpenVINO GenAI decodes the target's text with it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import load_drafter
from drafterforge.interop.layout import read_target
from tests.bundle.builders import edit_tensors
from tests.external.conftest import DEPTH, MAX_TOKENS, Client, our_logits

pytestmark = pytest.mark.external


@pytest.fixture(scope="module")
def client() -> Client:
    return Client("openvino").require()


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("openvino")


@pytest.mark.parametrize("name", ["general", "sql"])
def test_openvino_gives_our_logits_and_texts(client, real, exported, ours, prompt_file, text, work, tmp_path, name):
    features, tokens = text
    np.savez(tmp_path / "in.npz", features=features[:-1].numpy(), tokens=tokens[1:].numpy())
    shutil.copytree(exported(name, "sglang"), with_embedding := tmp_path / f"{name}-with-embedding")
    edit_tensors(
        with_embedding, lambda tensors: tensors.update({"embed_tokens.weight": real.backbone.embedding.clone()})
    )
    drafters = ("--drafter", exported(name, "sglang"), "--with-embedding", with_embedding)
    folders = ("--target", real.folder, *drafters, "--work", work)
    files = ("--prompts", prompt_file, "--inputs", tmp_path / "in.npz", "--out", tmp_path / "out.json")
    more = ("--depth", DEPTH, "--max-tokens", MAX_TOKENS)
    client.run("openvino_rounds.py", *folders, *files, *more, log=tmp_path / "openvino.log")

    drafter = load_drafter(SHIPPED / "smollm2-135m" / "drafters" / name, read_target(TargetConfig()).embedding.float())
    expected, rows = our_logits(drafter, features, tokens, 1)
    arrays = np.load(tmp_path / "out.npz")
    theirs = torch.from_numpy(arrays["logits"])[rows]
    worst = float((theirs - expected[0]).abs().max())
    assert worst < 1e-4 and torch.equal(theirs.argmax(-1), expected[0].argmax(-1))
    assert np.array_equal(arrays["d2t"], drafter.d2t.numpy())

    output = json.loads((tmp_path / "out.json").read_text())
    texts = [answer.tokens[:MAX_TOKENS] for answer in ours(name)]
    assert output["plain"] == texts == [answer["tokens"] for answer in output["answers"]]
    # OpenVINO GenAI drafts and counts differently and accepts fewer tokens, so the counts are only compared roughly.
    accepted = sum(answer["accepted"] for answer in output["answers"])
    emitted = [len(text_tokens) - 1 for text_tokens in texts]
    chain = 0
    for answer, left in zip(ours(name), emitted, strict=True):
        for cycle in answer.cycles:
            chain += min(cycle.accepted, max(left, 0))
            left -= cycle.accept_length
    print(
        f"OpenVINO GenAI {output['version']}, {name}: logits off by {worst:.1e}, accepted {accepted}, our chain {chain}"
    )
    assert accepted > 0.85 * chain
