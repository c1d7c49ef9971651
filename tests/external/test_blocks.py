"""Exported block drafters: speculators gives our logits, vLLM accepts the tokens of our cycles."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafterforge.config.target import TargetConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.block.fused import FusedBlock
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.spec import BlockSpec
from drafterforge.drafters.block.train.anchors import draft_blocks
from drafterforge.drafters.block.train.module import BlockModule
from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.train.ttt import PackedBatch
from drafterforge.interop.layout import read_target
from drafterforge.interop.vllm.layouts import write_vllm
from drafterforge.runtime.engine import Engine
from tests.external.conftest import DEPTH, MAX_TOKENS, Client, chains
from tests.external.test_vllm import compare, decode, per_position
from tests.models import uneven

pytestmark = pytest.mark.external
VERIFIER = {"verifier_lm_head.weight", "verifier_norm.weight"}  # speculators takes these from the target


STEPS = 60  # of training


@pytest.fixture(scope="module")
def vllm() -> Client:
    return Client("vllm").require()


@pytest.fixture(scope="module")
def cached():
    """A function that returns what it made first."""
    values: list[object] = []
    return lambda make: values[0] if values else values.append(make()) or values[0]


@pytest.fixture(scope="module")
def speculators() -> Client:
    return Client("speculators").require()


@pytest.mark.parametrize(
    "more", [{}, {"markov_rank": 8, "num_layers": 1, "confidence": True}], ids=["DFlash", "DSpark"]
)
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
        outputs = draft_blocks(drafter, batch, anchors[used] - 1)
        ours = drafter.lm_head(outputs)
        if spec.markov_rank:
            pairs = drafter.pairs(tokens[anchors[used] + torch.arange(4)[:, None]])
            ours = ours + drafter.markov_head.markov_w2(pairs)
            confidence = drafter.confidence_head.proj(torch.cat((outputs, pairs), dim=-1))[..., 0]
            torch.testing.assert_close(confidence, theirs["confidence"][used, 1:].T, atol=1e-4, rtol=1e-4)
    expected = theirs["logits"][used, 1:].transpose(0, 1)
    worst = float((ours - expected).abs().max())
    print(f"speculators, blocks {more}: largest difference of logits {worst:.1e} of {float(ours.abs().max()):.0f}")
    assert worst < 1e-4 * max(1.0, float(ours.abs().max())) and used.sum() > 40


def drafter_of_answers(real, facts, prompts: list[list[int]]) -> BlockDrafter:
    """A block drafter that has learned the target's answers to these prompts by heart."""
    texts = [answer.prompt + answer.tokens for answer in Engine(real).generate(prompts, MAX_TOKENS)]
    tokens = torch.tensor([token for text in texts for token in text])
    positions = [torch.arange(len(text)) for text in texts]
    with torch.no_grad():
        parts = [real.forward(torch.tensor([text]), at[None], None) for text, at in zip(texts, positions, strict=True)]
        states, features = (torch.cat([part[index][0] for part in parts]) for index in (0, 1))
        argmax = real.logits(states).argmax(-1)
    ids = tokens.unique()
    spec = BlockSpec.for_block(facts.config, facts.taps, len(ids), block_size=DEPTH + 1, mask_token_id=49151)
    torch.manual_seed(0)
    drafter = BlockDrafter(spec, facts.embedding.float())
    scratch_init(drafter)
    drafter.set_vocabulary(ids)
    config = TrainerConfig(ttt_steps=DEPTH, checkpoint_steps=False)
    module = BlockModule(drafter.train(), real.head_weight.float(), config, anchors=64)
    mask = torch.cat([at >= len(prompt) for at, prompt in zip(positions, prompts, strict=True)])
    lengths = [len(text) for text in texts]
    batch = PackedBatch(tokens, torch.cat(positions), mask, lengths, features.float(), states.float(), argmax)
    optimizer = torch.optim.AdamW([p for p in drafter.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        module(batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
    return drafter.eval()


@pytest.mark.parametrize("layout", ["speculators", "plain"])
def test_every_cycle_in_vllm_accepts_as_many_tokens_as_ours(vllm, real, prompts, prompt_file, tmp_path, layout, cached):
    facts = read_target(TargetConfig())
    drafter = cached(lambda: drafter_of_answers(real, facts, prompts))
    write_vllm(tmp_path, drafter, facts, tmp_path, layout, torch.float32)
    theirs = decode(vllm, real.folder, tmp_path, prompt_file, sorted(real.eos_ids), tmp_path, "dflash")
    ours = chains(real, FusedBlock(drafter, real.backbone.embedding), prompts)
    full, accepted, _ = compare(ours, theirs["answers"])
    assert accepted == full
    assert sum(map(len, full)) > 80 and per_position(full)[-1] > 20  # enough to compare
    print(f"vLLM {theirs['version']}, blocks, {layout}: {sum(map(len, full))} cycles, {per_position(full)}")
