"""Sampled output is a function of prompt and seed, and follows the filtered distribution exactly."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.errors import ConfigError
from drafterforge.runtime import sampling as room
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import Picker, Sampling, noise
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target

PROMPT = [3, 14, 15, 9, 26, 5]
SAMPLINGS = [
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_k=5, seed=2),
    Sampling(temperature=1.3, top_p=0.8, seed=3),
    Sampling(temperature=1.0, min_p=0.2, repetition_penalty=1.3, seed=4),
    Sampling(repetition_penalty=1.5),
    Sampling(temperature=2.0, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=0.8, seed=5),
]


def speculative(target, shape: TreeShape) -> Engine:
    """An engine with a random drafter over the whole vocabulary."""
    return Engine(target, FusedDrafter(tiny_drafter(target, 61), target.backbone.embedding), shape)


def test_noise_depends_on_the_position_and_not_on_the_first_drawn_one():
    full = noise(9, 100, 40)
    for start in range(0, 40, 7):
        assert noise(9, 100 + start, 5)[: 40 - start].tolist() == full[start : start + 5].tolist()
    assert not np.isin(full, noise(10, 100, 40)).any()
    uniform = noise(3, 0, 20000)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-3
    across_seeds = np.concatenate([noise(seed, 7, 1) for seed in range(3000)])
    assert scipy.stats.kstest(across_seeds, "uniform").pvalue > 1e-3


def filtered_by_transformers(logits: torch.Tensor, text: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities [B, V] after transformers' own processors."""
    chain = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    chain.append(TopPLogitsWarper(sampling.top_p))
    chain.append(MinPLogitsWarper(sampling.min_p))
    return chain(text, logits.clone().double()).softmax(dim=-1)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("guess", [4, 512])
@pytest.mark.parametrize("sampling", [s for s in SAMPLINGS if s.temperature], ids=str)
def test_the_filters_are_those_of_transformers(sampling, guess, monkeypatch):
    monkeypatch.setattr(room, "NUCLEUS_GUESS", guess)
    logits, text = torch.randn(4, 50) * 3, torch.randint(0, 50, (4, 6))
    expectation = filtered_by_transformers(logits, text, sampling)
    picker = Picker([sampling] * 4, 50, torch.device("cpu"))
    seen = torch.zeros(4, 50, dtype=torch.bool).scatter_(1, text, True)
    # exactly the tokens whose interval of [0, 1) has noise
    grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    drawn = torch.stack([picker(logits, u.expand(4), seen) for u in grid], dim=1)
    for row in range(4):
        share = torch.bincount(drawn[row], minlength=50) / 2000
        torch.testing.assert_close(share.double(), expectation[row], atol=1.01e-3, rtol=0)


def test_rows_of_a_batch_keep_their_own_filters():
    logits, uniform = torch.randn(len(SAMPLINGS), 61) * 2, torch.rand(len(SAMPLINGS), dtype=torch.float64)
    seen = torch.rand(len(SAMPLINGS), 61) < 0.2
    together = Picker(SAMPLINGS, 61, logits.device)(logits, uniform, seen)
    for row, sampling in enumerate(SAMPLINGS):
        alone = Picker([sampling], 61, logits.device)
        assert alone(logits[row : row + 1], uniform[row : row + 1], seen[row : row + 1]) == together[row]


def test_noise_close_to_1_picks_the_last_token_with_a_probability():
    logits = torch.tensor([[0.0, 1.0, -torch.inf]])
    almost_one = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert Picker([Sampling(temperature=1.0)], 3, logits.device)(logits, almost_one, None) == 1


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("shape", [(5, 4, 1), (24, 4, 4)])
def test_speculative_sampling_equals_autoregressive_sampling(sampling, shape):
    target = tiny_target()
    expectation = Engine(target).generate([PROMPT], 18, sampling)[0]
    answer = speculative(target, TreeShape(*shape)).generate([PROMPT], 18, sampling)[0]
    assert answer.tokens == expectation.tokens and answer.stop_reason == expectation.stop_reason


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    shape=st.tuples(st.integers(1, 20), st.integers(0, 5), st.integers(1, 5)),
)
def test_any_seed_and_shape_gives_the_autoregressive_text(seed, temperature, top_p, shape):
    target = tiny_target()
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    expectation = Engine(target).generate([PROMPT], 16, sampling)[0].tokens
    assert speculative(target, TreeShape(*shape)).generate([PROMPT], 16, sampling)[0].tokens == expectation


def test_another_seed_gives_another_text():
    target = tiny_target(eos_token_id=None)
    texts = {tuple(Engine(target).generate([PROMPT], 8, Sampling(temperature=2.0, seed=s))[0].tokens) for s in range(6)}
    assert len(texts) == 6


@pytest.mark.slow
def test_sampled_tokens_follow_the_exact_distribution():
    """Chi-square over seeds of the second token, given the first; it is drawn inside a drafted tree."""
    target = tiny_target(eos_token_id=None)
    engine = speculative(target, TreeShape(12, 3, 4))
    sampling = [Sampling(temperature=1.0, top_k=3, seed=seed) for seed in range(2000)]
    engine.max_batch = 64
    drawn = [answer.tokens for answer in engine.generate([PROMPT] * 2000, 4, sampling)]
    first = max({tokens[0] for tokens in drawn}, key=lambda token: sum(tokens[0] == token for tokens in drawn))
    with torch.inference_mode():
        text = torch.tensor([[*PROMPT, first]])
        states, _ = target.forward(text, torch.arange(len(PROMPT) + 1)[None], None)
        probs = filtered_by_transformers(target.logits(states[:, -1]), text, Sampling(temperature=1.0, top_k=3))[0]
    seconds = [tokens[1] for tokens in drawn if tokens[0] == first]
    possible_tokens = probs.nonzero()[:, 0].tolist()
    assert set(seconds) <= set(possible_tokens) and len(seconds) > 500
    expected = np.array([float(probs[token]) * len(seconds) for token in possible_tokens])
    counted = np.array([seconds.count(token) for token in possible_tokens])
    assert scipy.stats.chisquare(counted, expected * counted.sum() / expected.sum()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.5), ("min_p", 2), ("repetition_penalty", 0)],
)
def test_a_setting_out_of_range_is_named(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be .*, got {value}"):
        Sampling(**{name: value})
