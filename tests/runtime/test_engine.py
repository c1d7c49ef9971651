"""Greedy output equals the target's, and drafter state is a function of the committed text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.errors import DrafterforgeError
from drafterforge.runtime.batch import Batch
from drafterforge.runtime.engine import Engine, proposer_of
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.stopping import StopRule
from drafterforge.targets.load import wrap_model
from drafterforge.tree.grow import TreeShape
from tests.models import FAMILIES, NORMS, TINY, tiny_drafter, tiny_model, tiny_target, uneven

PROMPT = [3, 14, 15, 9, 26, 5]
SHAPES = [(1, 0, 1), (5, 4, 1), (16, 4, 4), (64, 6, 8), (2, 5, 3)]


def fused(target, **changes: object) -> FusedDrafter:
    """A random drafter, ready to decode."""
    return FusedDrafter(uneven(tiny_drafter(target, **changes)), target.backbone.embedding)


def autoregressive(target, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding by the engine without a drafter."""
    return Engine(target).generate([prompt], count)[0].tokens


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("family", "forward"), [*((family, "lean") for family in FAMILIES), ("llama", "modules"), ("mistral", "modules")]
)
def test_greedy_output_equals_hf_generate(family, forward):
    model = tiny_model(family)
    target = tiny_target(family, forward)
    prompt = torch.tensor([PROMPT])
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False)
    expected = expected[0, len(PROMPT) :].tolist()
    assert autoregressive(target, PROMPT, 24) == expected
    for shape in SHAPES:
        answer = Engine(target, fused(target), TreeShape(*shape)).generate([PROMPT], 24)[0]
        assert answer.tokens == expected, shape


@pytest.mark.slow
@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=2)], ids=["greedy", "sampled"])
def test_the_norms_of_eagle_3_1_are_lossless(target, norms, sampling):
    prompts, drafter = [PROMPT, [7]], fused(target, **norms)
    expected = [answer.tokens for answer in Engine(target).generate(prompts, 16, sampling)]
    for shape in SHAPES[1:3]:
        for graphs in (False, True):
            engine = Engine(target, drafter, TreeShape(*shape), graphs=graphs)
            assert [answer.tokens for answer in engine.generate(prompts, 16, sampling)] == expected


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    prompt=st.lists(st.integers(3, 60), min_size=1, max_size=20),
    num_tokens=st.integers(1, 30),
    depth=st.integers(0, 6),
    top_k=st.integers(1, 6),
    count=st.integers(1, 24),
)
def test_every_tree_shape_is_lossless(prompt, num_tokens, depth, top_k, count):
    target = tiny_target()
    answer = Engine(target, fused(target), TreeShape(num_tokens, depth, top_k)).generate([prompt], count)[0]
    assert answer.tokens == autoregressive(target, prompt, count)


class Oracle(FusedDrafter):
    """A drafter that proposes the token `script(position)`, or ties between all tokens where that is None."""

    def __init__(self, target, script) -> None:
        super().__init__(tiny_drafter(target, draft_vocab_size=61), target.backbone.embedding)
        self.script = script
        self.packed, self.positions = None, None  # its logits are not those of the packed head

    def layer(self, embeddings, hidden, positions, attend, rows=None):
        """Store the positions of the drafted nodes."""
        out = super().layer(embeddings, hidden, positions, attend, rows)
        self.positions = positions if rows is None else positions[rows]
        return out

    def logits(self, hidden):
        """Logits of the script's token for the position two after the node."""
        out = torch.zeros(hidden.shape[0], self.spec.draft_vocab_size)
        for row, position in enumerate(self.positions.tolist()[: hidden.shape[0]]):
            token = self.script(position + 2)
            if token is not None:
                out[row, token] = 50.0
        return out


def test_every_level_of_a_perfect_drafter_is_accepted():
    target = tiny_target(eos_token_id=None)
    expected = autoregressive(target, PROMPT, 41)
    text = PROMPT + expected
    oracle = Oracle(target, lambda position: text[position] if position < len(text) else 3)
    answer = Engine(target, oracle, TreeShape(6, 4, 2)).generate([PROMPT], 41)[0]
    assert answer.tokens == expected
    assert [cycle.accept_length for cycle in answer.cycles] == [5] * 8
    assert answer.mat == 5


def test_a_drafter_that_is_always_wrong_emits_only_the_bonus_token():
    target = tiny_target(eos_token_id=None)
    expected = autoregressive(target, PROMPT, 20)
    text = PROMPT + expected
    wrong = Oracle(target, lambda position: (text[position] + 1) % 61 if position < len(text) else 3)
    answer = Engine(target, wrong, TreeShape(4, 3, 1)).generate([PROMPT], 20)[0]
    assert answer.tokens == expected and answer.mat == 1


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("shape", [(8, 3, 2), (30, 4, 5)])
def test_a_drafter_full_of_ties_stays_lossless(shape):
    target = tiny_target()
    ties = Oracle(target, lambda position: None)
    assert Engine(target, ties, TreeShape(*shape)).generate([PROMPT], 30)[0].tokens == autoregressive(
        target, PROMPT, 30
    )


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("count", range(1, 12))
def test_max_new_tokens_cuts_inside_an_accepted_walk(count):
    target = tiny_target(eos_token_id=None)
    text = PROMPT + autoregressive(target, PROMPT, 40)
    oracle = Oracle(target, lambda position: text[position] if position < len(text) else 3)
    answer = Engine(target, oracle, TreeShape(6, 5, 1)).generate([PROMPT], count)[0]
    assert answer.tokens == text[len(PROMPT) : len(PROMPT) + count]
    assert answer.stop_reason == "length"


def test_an_end_token_inside_an_accepted_walk_ends_the_answer():
    plain = tiny_target(eos_token_id=None)
    text = PROMPT + autoregressive(plain, PROMPT, 20)
    end = next(
        token
        for index, token in enumerate(text[len(PROMPT) :])
        if token not in text[len(PROMPT) : len(PROMPT) + index] and index >= 3
    )
    target = tiny_target(eos_token_id=end)
    oracle = Oracle(target, lambda position: text[position] if position < len(text) else 3)
    answer = Engine(target, oracle, TreeShape(8, 6, 1)).generate([PROMPT], 20)[0]
    assert answer.tokens == text[len(PROMPT) : text.index(end, len(PROMPT)) + 1]
    assert answer.stop_reason == "eos"


def test_the_end_of_the_context_is_a_stop_reason():
    target = tiny_target(eos_token_id=None, max_position_embeddings=32)
    answer = Engine(target, fused(target), TreeShape(12, 4, 3)).generate([PROMPT], 100)[0]
    assert len(PROMPT) + len(answer.tokens) == 32 and answer.stop_reason == "context"
    assert answer.tokens == autoregressive(target, PROMPT, 100)
    with pytest.raises(DrafterforgeError, match="the prompt has 32 tokens"):
        Engine(target).generate([[3] * 32], 1)


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_drafter_state_equals_one_teacher_forced_pass(norms):
    target = tiny_target(eos_token_id=None)
    drafter = fused(target, **norms)
    prompts = [PROMPT, [7, 9], [5] * 11]
    with torch.inference_mode():
        batch = Batch(target, proposer_of(drafter, TreeShape(6, 2, 2)))
        limits = (100, 4, 100)  # the second row ends early
        for prompt, limit in zip(prompts, limits, strict=True):
            batch.admit(prompt, StopRule(frozenset(), limit, "length"), Sampling())
        for _ in range(6):
            batch.cycle(TreeShape(10, 3, 3))
            for number, row in enumerate(batch.rows):
                text = torch.tensor(row.answer.prompt + row.answer.tokens)
                before = text.numel() - 1
                assert row.length == batch.proposer.group.stable[number] == before and batch.root[number] == text[-1]
                _, features = target.forward(text[None, :-1], torch.arange(before)[None], None)
                fresh = proposer_of(drafter, TreeShape(6, 2, 2))
                fresh.admit(text, features[0])
                torch.testing.assert_close(
                    batch.proposer.group.cache.data[:, :, number, :, :before],
                    fresh.group.cache.data[:, :, 0, :, :before],
                    rtol=1e-4,
                    atol=1e-5,
                )
                torch.testing.assert_close(batch.proposer.last[number], fresh.last[0], rtol=1e-4, atol=1e-5)
        assert len(batch.rows) == 2


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("config_class", "model_class", "changes"),
    [
        (MistralConfig, MistralForCausalLM, {"sliding_window": 16}),
        (MixtralConfig, MixtralForCausalLM, {"sliding_window": 16}),
        (Phi3Config, Phi3ForCausalLM, {"sliding_window": 16}),
        (Phi3Config, Phi3ForCausalLM, {"original_max_position_embeddings": 16, "rope_parameters": LONGROPE}),
    ],
)
def test_an_answer_ends_before_the_target_would_decode_otherwise(config_class, model_class, changes):
    torch.manual_seed(1)
    model = model_class(config_class(**{**TINY, **changes, "eos_token_id": None})).eval()
    target = wrap_model(model, None, name="tiny", folder=Path("nowhere"))
    assert target.max_positions == 16
    prompt = torch.tensor([PROMPT])
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, do_sample=False)
    answer = Engine(target, fused(target), TreeShape(8, 3, 2)).generate([PROMPT], 40)[0]
    assert answer.tokens == expected[0, len(PROMPT) :].tolist() and answer.stop_reason == "context"
    short = PROMPT[:2]  # decodes beside a row that ends, and whose tree the longer limit of this one makes deeper
    alone = Engine(target).generate([short], 12)[0]
    together = Engine(target, fused(target), TreeShape(8, 3, 2)).generate([PROMPT, short], 12)
    assert [row.tokens for row in together] == [answer.tokens, alone.tokens]
