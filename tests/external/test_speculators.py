"""speculators opens an export with no missing or extra tensor, and its forward pass gives our logits."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import load_drafter
from drafterforge.drafters.eagle3.spec import NORMS_31
from drafterforge.interop.layout import read_target
from drafterforge.interop.sglang.layout import write_sglang
from drafterforge.interop.vllm.layouts import write_vllm
from tests.external.conftest import Client, our_logits, with_norms
from tests.models import NORMS

pytestmark = pytest.mark.external
STEPS = 3
VERIFIER = {"verifier_lm_head.weight", "verifier_norm.weight"}  # speculators takes these from the target


@pytest.fixture(scope="module")
def speculators() -> Client:
    return Client("speculators").require()


def their_logits(client, folder, features, tokens, tmp_path, *more) -> tuple[torch.Tensor, dict]:
    """Logits of teacher-forced steps, [I, T, W], and a report with missing and unexpected tensors."""
    config = read_target(TargetConfig())
    inputs = {"features": features[:-1], "tokens": tokens[1:], "embedding": config.embedding}
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, tmp_path / "in.safetensors")
    arguments = (
        "--drafter",
        folder,
        "--inputs",
        tmp_path / "in.safetensors",
        "--out",
        tmp_path / "out",
        "--steps",
        STEPS,
    )
    client.run("speculators_logits.py", *arguments, *more, log=tmp_path / "speculators.log")
    return load_file(tmp_path / "out.safetensors")["logits"], json.loads((tmp_path / "out.json").read_text())


def largest_difference(ours, rows, theirs) -> float:
    """The largest difference over all steps and the positions inside the text."""
    worst = 0.0
    for step in range(STEPS):
        inside = rows + step < theirs.shape[1]
        worst = max(worst, float((ours[step, inside] - theirs[step, rows[inside]]).abs().max()))
        assert inside.sum() > 50
        assert torch.equal(ours[step, inside].argmax(-1), theirs[step, rows[inside]].argmax(-1))
    return worst


@pytest.mark.parametrize("layout", ["speculators", "sglang, converted"])
@pytest.mark.parametrize("name", ["general", "sql"])
def test_speculators_gives_our_logits(speculators, exported, text, tmp_path, name, layout):
    facts = read_target(TargetConfig())
    direct = layout == "speculators"
    folder = exported(name, "vllm") if direct else exported(name, "sglang")
    more = () if direct else ("--convert-for", facts.model)
    theirs, report = their_logits(speculators, folder, *text, tmp_path, *more)
    assert report["unexpected"] == [] and report["layers"] == [2, 15, 27]
    assert set(report["missing"]) - VERIFIER == (set() if direct else {"embed_tokens.weight"})
    drafter = load_drafter(SHIPPED / "smollm2-135m" / "drafters" / name, facts.embedding.float())
    worst = largest_difference(*our_logits(drafter, *text, STEPS), theirs)
    print(f"speculators, {name}, {layout}: largest difference of logits {worst:.1e}")
    assert worst < 1e-4


def test_norm_before_residual_means_the_same_to_speculators(speculators, text, tmp_path):
    facts = read_target(TargetConfig())
    drafter = load_drafter(SHIPPED / "smollm2-135m" / "drafters" / "general", facts.embedding.float())
    plain, rows = our_logits(drafter, *text, STEPS)
    object.__setattr__(drafter.spec, "norm_before_residual", True)
    write_vllm(tmp_path, drafter, facts, tmp_path)
    theirs, report = their_logits(speculators, tmp_path, *text, tmp_path)
    assert report["norm_before_residual"] is True
    ours, rows = our_logits(drafter, *text, STEPS)
    # The weights were not trained with this flag and give larger logits than a trained head, so the error is relative.
    worst, scale = largest_difference(ours, rows, theirs), float(ours.abs().max())
    print(f"speculators, normed before the residual: largest difference of logits {worst:.1e} of {scale:.0f}")
    assert worst < 1e-5 * scale
    assert float((ours - plain).abs().max()) > 1  # the flag changes the drafter


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, "speculators") for name in NORMS if name != "EAGLE-3"),
        ("norm_output", "sglang, converted"),  # their converter of 0.9.0 leaves the tensors of fc_norm behind
    ],
)
def test_the_norms_of_eagle_3_1_mean_the_same_to_speculators(speculators, text, tmp_path, name, layout):
    norms = NORMS[name]
    facts = read_target(TargetConfig())
    plain = load_drafter(SHIPPED / "smollm2-135m" / "drafters" / "general", facts.embedding)
    drafter = with_norms(plain, text[0], norms)
    direct = layout == "speculators"
    (write_vllm if direct else write_sglang)(tmp_path, drafter, facts, tmp_path)
    more = () if direct else ("--convert-for", facts.model)
    theirs, report = their_logits(speculators, tmp_path, *text, tmp_path, *more)
    assert {flag: report[flag] for flag in NORMS_31} == dict.fromkeys(NORMS_31, False) | norms
    assert report["unexpected"] == []
    assert set(report["missing"]) - VERIFIER == (set() if direct else {"embed_tokens.weight"})
    ours, rows = our_logits(drafter, *text, STEPS)
    worst, scale = largest_difference(ours, rows, theirs), float(ours.abs().max())
    print(f"speculators, {name}, {layout}: largest difference of logits {worst:.1e} of {scale:.0f}")
    assert worst < 1e-5 * scale
    assert float((ours - our_logits(plain, *text, STEPS)[0]).abs().max()) > 1  # the flag changes the drafter
