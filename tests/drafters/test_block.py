"""Block drafters: decoding is lossless, incremental, equal to the module, stacked or not, and equal in replays."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from drafterforge.drafters.block import propose
from drafterforge.drafters.block.fused import FusedBlock, StackedBlocks
from drafterforge.drafters.block.propose import BlockGroup, BlockReading
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.lora import CONFIG, WEIGHTS, load_adapter
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.judging import Truth
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ArtifactError
from drafterforge.replay.answer_recorder import record_answers
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import Sampling
from drafterforge.schedulers.base import StaticScheduler
from drafterforge.tree.grow import TreeShape
from tests.drafters.blocks import VARIANTS, block_experts, tiny_block
from tests.models import tiny_drafter, tiny_target
from tests.schedulers.policies import marginal_policy, shape_policy

PROMPTS, COUNT = [[3, 14, 15, 9, 26, 5] * 3, [7], [4] * 17], 20
SHAPES = {"chain": TreeShape(5, 4, 1), "tree": TreeShape(12, 4, 3), "deeper than the block": TreeShape(9, 7, 2)}
SAMPLINGS = [Sampling(), Sampling(temperature=0.9, top_p=0.9, seed=5)]


@pytest.fixture(scope="module")
def target():
    """A tiny model."""
    return tiny_target(eos_token_id=None)


def plain(target, sampling: Sampling = SAMPLINGS[0]) -> list[list[int]]:
    """Tokens without a drafter."""
    return [Engine(target).generate([prompt], COUNT, sampling)[0].tokens for prompt in PROMPTS]


def text_of(target, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random text and its features."""
    tokens = torch.randint(3, 59, (length,))
    with torch.inference_mode():
        return tokens, target.forward(tokens[None], torch.arange(length)[None], None)[1][0]


@pytest.mark.parametrize(("shape", "sampling"), [*((shape, SAMPLINGS[0]) for shape in SHAPES), ("tree", SAMPLINGS[1])])
@pytest.mark.parametrize("variant", VARIANTS)
def test_block_drafters_decode_losslessly(target, variant, shape, sampling):
    drafter = FusedBlock(tiny_block(target, **VARIANTS[variant]), target.backbone.embedding)
    expected = plain(target, sampling)
    for max_batch in (1, 3):
        answers = Engine(target, drafter, SHAPES[shape], max_batch=max_batch).generate(PROMPTS, COUNT, sampling)
        assert [answer.tokens for answer in answers] == expected


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("taps", [(3,), (0, 1, 3, 5, 6)])
def test_a_drafter_may_read_any_number_of_layers(taps, sampling):
    target = tiny_target(eos_token_id=None, taps=taps)
    experts = block_experts(target, 2)
    policy = shape_policy(target, ["features", "text"])
    pool = Pool({"general": experts[0], "sql": experts[1]}, "hedgespec", scheduler=policy)
    answers = Engine(target, pool, TreeShape(8, 3, 2), max_batch=2).generate(PROMPTS, COUNT, sampling)
    assert [answer.tokens for answer in answers] == plain(target, sampling)
    assert any(cycle.num_nodes > 1 for answer in answers for cycle in answer.cycles)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_pools_and_hybrids_of_block_drafters_decode_losslessly(target, sampling):
    experts = block_experts(target, 3, markov_rank=4, confidence=True)
    lookup = Retrieval(min_probability=1e-3, min_expected=0.0)
    drafters = {
        "general": experts[0],
        "sql": experts[1],
        "eagle": FusedDrafter(tiny_drafter(target), target.backbone.embedding),
        "chat": HybridDrafter(experts[2], lookup, min_probability=0.01),
        "retrieval": lookup,
    }
    expected = plain(target, sampling)
    for selector in ("random", "hedgespec"):
        pool = Pool(drafters, selector, scheduler=StaticScheduler(TreeShape(8, 3, 2)))
        answers = Engine(target, pool, TreeShape(8, 3, 2), max_batch=2).generate(PROMPTS, COUNT, sampling)
        assert [answer.tokens for answer in answers] == expected
    assert {cycle.drafter for answer in answers for cycle in answer.cycles} - {"eagle", "retrieval"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_drafter_that_decodes_gives_the_logits_of_the_module(target, variant):
    module = tiny_block(target, **VARIANTS[variant])
    tokens, features = text_of(target, 12)
    group = BlockGroup(StackedBlocks([FusedBlock(module, target.backbone.embedding)]))
    with torch.inference_mode():
        group.admit(tokens, features[:-1])
        logits = group._draft(0, [0])[0]
        context, rope = module.context(features[:-1]), module.rotary(torch.arange(11), torch.float32)

        def attend(layer, q, k, v):
            keys, values = (
                torch.cat(pair) for pair in zip(module.layers[layer].self_attn.keys(context, rope), (k, v), strict=True)
            )
            q, keys, values = (part.transpose(0, 1) for part in (q, keys, values))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            return mixed.transpose(0, 1)

        size = module.spec.block_size
        states = module(module.block_tokens(tokens[-1:])[0], 11 + torch.arange(size), torch.float32, attend)[1:]
        expected = module.lm_head(states)
        after = group.drafters.after(logits, tokens[-1:])
        if module.spec.markov_rank:
            pair = module.pairs(tokens[-1:]).expand(len(states), -1)
            expected = expected + module.markov_head.markov_w2(pair)
        if module.spec.confidence:
            confidence = module.confidence_head.proj(torch.cat((states, pair), dim=-1)).sigmoid()
            expected = (confidence * expected.softmax(-1) + (1 - confidence) / expected.shape[-1]).log()
            assert confidence.std() > 0.05  # it matters
            torch.testing.assert_close(after.exp().sum(-1), torch.ones(len(states)))
        torch.testing.assert_close(after, expected, atol=1e-4, rtol=1e-4)


def test_state_is_a_function_of_the_committed_text(target):
    experts = block_experts(target, 3)
    tokens, features = text_of(target, 20)
    with torch.inference_mode():
        complete, parts = (BlockGroup(StackedBlocks(experts)) for _ in range(2))
        complete.admit(tokens, features[:-1])
        parts.admit(tokens[:4], features[:3])
        for start, end in ((4, 6), (6, 7), (7, 20)):
            parts.commit(tokens[None, start:end], features[None, start - 1 : end - 1], [end - start])
            if start != 6:
                parts.read()
        for member in range(3):
            torch.testing.assert_close(complete._draft(member, [0]), parts._draft(member, [0]), atol=1e-4, rtol=1e-4)


def test_a_stacked_pass_judges_as_each_drafter_alone(target):
    experts = block_experts(target, 4, markov_rank=4, confidence=True)
    texts = [text_of(target, 14), text_of(target, 9)]

    distributions = torch.randn(2, 3, len(target.head_weight)).softmax(dim=-1)

    def judged(members):
        group = BlockGroup(StackedBlocks(members))
        for tokens, features in texts:
            group.admit(tokens[:5], features[:4])
        following = torch.stack([tokens[5:8] for tokens, _ in texts])
        group.commit(following, torch.stack([features[4:7] for _, features in texts]), [3, 2])
        return group.read(Truth(following, distributions), [15] * len(members))

    with torch.inference_mode():
        together, alone = judged(experts), [judged([expert]) for expert in experts]
    for name in ("accepted", "gamma"):
        expected = torch.cat([getattr(judgement, name) for judgement in alone])
        torch.testing.assert_close(getattr(together, name)[..., :2], expected[..., :2], atol=1e-4, rtol=1e-4)
    assert together.accepted[..., :2].unique().tolist() == [0.0, 1.0]


def test_a_drafter_is_judged_by_what_it_would_have_drafted_there(target, monkeypatch):
    monkeypatch.setattr(propose, "ROOTS", 12)  # fewer than the text has
    drafter = FusedBlock(tiny_block(target, markov_rank=4, confidence=True), target.backbone.embedding)
    tokens, features = text_of(target, 30)
    with torch.inference_mode():
        reading = BlockReading(BlockGroup(StackedBlocks([drafter])), tokens, features, [3])
        for root in (1, 7, 28):
            group = BlockGroup(StackedBlocks([drafter]))
            group.admit(tokens[: root + 1], features[:root])
            guesses = group.guesses(0, [0])
            torch.testing.assert_close(reading.guesses(0, torch.tensor([root])), guesses, atol=1e-4, rtol=1e-4)
            best = drafter.vocabulary[guesses[0].topk(3).indices].tolist()
            assert reading.accepted[0, root + 1] == (tokens[root + 1].item() in best)


@pytest.mark.parametrize("selector", ["hedgespec", "metasd_ucb"])
def test_replayed_cycles_equal_live_ones(target, selector):
    experts = block_experts(target, 3, markov_rank=4, confidence=True)
    lookup = Retrieval(min_probability=1e-3, min_expected=0.0)
    drafters = {"general": experts[0], "sql": experts[1], "chat": HybridDrafter(experts[2], lookup)}
    shapes = {"chat": TreeShape(8, 3, 2)}
    answers = Engine(target).generate(PROMPTS, COUNT)
    for shape in (TreeShape(10, 3, 3), TreeShape(9, 7, 2)):
        scheduler = StaticScheduler(shape)
        recorded = record_answers(
            target, Pool(drafters, shapes=shapes), shape, answers, {"static": scheduler}, branches=True
        )["static"]
        played = recorded.run(recorded.maker(selector, seed=3))
        pool = Pool(drafters, selector, shapes=shapes, scheduler=scheduler, seed=3)
        live = Engine(target, pool, shape, max_batch=1).generate(PROMPTS, COUNT)
        for answer, cycles in zip(live, played, strict=True):
            assert [(recorded.names[c.drafter], c.accept_length, c.depth, c.num_nodes) for c in cycles] == [
                (c.drafter, c.accept_length, c.depth, c.num_nodes) for c in answer.cycles
            ]


def test_less_of_a_draft_is_verified_where_confidence_is_low(target):
    """The same drafter with another confidence: its first tokens stay, a policy that weighs them cuts the tree."""
    module, sizes = tiny_block(target, markov_rank=4, confidence=True), []
    tokens, features = text_of(target, 12)
    module.lm_head.weight.data.mul_(3.0)  # some tokens are likely
    for bias in (-6.0, 6.0):
        torch.nn.init.zeros_(module.confidence_head.proj.weight)
        torch.nn.init.constant_(module.confidence_head.proj.bias, bias)
        group = BlockGroup(StackedBlocks([FusedBlock(module, target.backbone.embedding)]))
        with torch.inference_mode():
            group.admit(tokens, features[:-1])
            guesses = group.guesses(0, [0])
            growth = marginal_policy(target).growth(torch.tensor([11]))
            tree = group.draft(0, [0], tokens[-1:], TreeShape(10, 3, 3), growth)
        sizes.append((guesses.topk(3).indices.tolist(), tree.tokens.shape[1]))
    (low, few), (high, many) = sizes
    assert low == high and few < many


@pytest.mark.parametrize("name", ["confidence_head.proj", "markov_head.markov_w2"])
def test_an_adapter_of_a_head_that_experts_share_is_refused(target, tmp_path, name):
    drafter = tiny_block(target, markov_rank=4, confidence=True)
    module = drafter.get_submodule(name)
    parts = {"A": torch.zeros(2, module.in_features), "B": torch.zeros(module.out_features, 2)}
    tensors = {f"base_model.model.{name}.lora_{side}.weight": part for side, part in parts.items()}
    save_file(tensors, tmp_path / WEIGHTS)
    (tmp_path / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    with pytest.raises(ArtifactError, match=f"adds to {name}, which is not a projection that LoRA experts adapt"):
        load_adapter(tmp_path, drafter)
