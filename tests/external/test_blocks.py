"""Exported block drafters in speculators: no missing or extra tensor, and our logits."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafterforge.config.target import TargetConfig
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.spec import BlockSpec
from drafterforge.drafters.block.train.anchors import draft_blocks
from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.train.ttt import PackedBatch
from drafterforge.interop.layout import read_target
from drafterforge.interop.vllm.layouts import write_vllm
from tests.external.conftest import Client
from tests.models import uneven

pytestmark = pytest.mark.external
VERIFIER = {"verifier_lm_head.weight", "verifier_norm.weight"}  # speculators takes these from the target


@pytest.fixture(scope="module")
def speculators() -> Client:
    return Client("speculators").require()


@pytest.mark.parametrize("more", [{}, {"markov_rank": 8, "num_layers": 1}], ids=["DFlash", "DSpark"])
def test_speculators_gives_the_logits_of_our_blocks(speculators, text, tmp_path, more):
    facts, (features, tokens) = read_target(TargetConfig()), (part[:60] for part in text)
    spec = BlockSpec.for_block(facts.config, facts.taps, 1000, block_size=5, mask_token_id=49151, **more)
    torch.manual_seed(0)
    drafter = BlockDrafter(spec, facts.embedding.float())
    scratch_init(drafter, std=0.05)
    uneven(drafter).set_vocabulary(torch.randperm(spec.vocab_size)[:1000].sort().values)
    write_vllm(tmp_path, drafter, facts, tmp_path, dtype=torch.float32)
    inputs = {"features": features, "tokens": tokens, "embedding": facts.embedding.float()}
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, tmp_path / "in.safetensors")
    arguments = ("--drafter", tmp_path, "--inputs", tmp_path / "in.safetensors", "--out", tmp_path / "out")
    speculators.run("speculators_blocks.py", *arguments, log=tmp_path / "speculators.log")
    report, theirs = json.loads((tmp_path / "out.json").read_text()), load_file(tmp_path / "out.safetensors")
    assert report["unexpected"] == [] and set(report["missing"]) <= VERIFIER
    assert report["layers"] == list(facts.taps) and report["tokens"] == 4

    batch = PackedBatch(
        tokens=tokens,
        positions=torch.arange(len(tokens)),
        loss_mask=torch.ones(len(tokens), dtype=torch.bool),
        lengths=[len(tokens)],
        features=features,
        states=features,
        argmax=tokens,
    )
    anchors = theirs["anchors"]
    used = anchors > 0  # the first token has no context
    with torch.no_grad():
        ours = drafter.lm_head(draft_blocks(drafter, batch, anchors[used] - 1))
        if spec.markov_rank:
            before = tokens[anchors[used] + torch.arange(4)[:, None]]
            ours = ours + drafter.markov_head.markov_w2(drafter.pairs(before))
    expected = theirs["logits"][used, 1:].transpose(0, 1)
    worst = float((ours - expected).abs().max())
    print(f"speculators, blocks {more}: largest difference of logits {worst:.1e} of {float(ours.abs().max()):.0f}")
    assert worst < 1e-4 * max(1.0, float(ours.abs().max())) and used.sum() > 40
