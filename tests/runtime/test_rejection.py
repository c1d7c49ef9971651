"""Rejection verification follows the target's distribution, accepts 1 - TV, and is refused where it cannot be exact."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from drafterforge.assembly.checks import check_engine
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import REJECTION, RuntimeConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.errors import ConfigError
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rejection import inverse_cdf, verify_token
from drafterforge.runtime.sampling import Sampling, noise
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_model, tiny_target

MANY, VOCABULARY = 10**6, 12
CHAIN = TreeShape(4, 3, 1)
ENDED = 61  # beyond the target's vocabulary
PROMPT = [3, 14, 15, 9, 26, 5]


def distributions(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of a target and of a drafter, which has no chance of two of the tokens and too much of another, [V]."""
    p, q = np.random.default_rng(seed).dirichlet(np.ones(VOCABULARY), 2)
    q[:2] = 0.0
    return torch.from_numpy(p), torch.from_numpy(q / q.sum())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_million_tokens_follow_the_target_and_are_accepted_as_often_as_the_distributions_agree(seed):
    p, q = distributions(seed)
    uniform = torch.from_numpy(np.random.default_rng(seed + 10).random((3, MANY)))
    drafted = torch.searchsorted(q.cumsum(0), uniform[0] * q.sum(), right=True).clamp(max=VOCABULARY - 1)
    rows = [part.expand(MANY, -1) for part in (p, q)]
    accepted, tokens = verify_token(*rows, drafted, uniform[1], uniform[2])
    counts = torch.bincount(tokens, minlength=VOCABULARY).numpy()
    assert scipy.stats.chisquare(counts, (p * MANY).numpy()).pvalue > 1e-3
    agreement = torch.minimum(p, q).sum().item()  # 1 - TV
    assert accepted.double().mean().item() == pytest.approx(agreement, abs=4 * 0.5 / MANY**0.5)


def test_a_wrong_residual_is_noticed_by_the_chi_square_test():
    """The same test with replacements from p, as sample-and-match draws them, fails: its power is enough."""
    p, q = distributions(0)
    uniform = torch.from_numpy(np.random.default_rng(3).random((3, MANY)))
    drafted = torch.searchsorted(q.cumsum(0), uniform[0] * q.sum(), right=True).clamp(max=VOCABULARY - 1)
    rows = [part.expand(MANY, -1) for part in (p, q)]
    accepted, _ = verify_token(*rows, drafted, uniform[1], uniform[2])
    tokens = torch.where(accepted, drafted, inverse_cdf(rows[0], uniform[2]))
    counts = torch.bincount(tokens, minlength=VOCABULARY).numpy()
    assert scipy.stats.chisquare(counts, (p * MANY).numpy()).pvalue < 1e-9


def test_a_drafter_equal_to_the_target_is_never_rejected():
    p = torch.full((1000, 5), 0.2, dtype=torch.double)
    accepted, _ = verify_token(p, p, torch.arange(1000) % 5, torch.rand(1000).double(), torch.rand(1000).double())
    assert accepted.all()


def test_streams_of_noise_are_independent():
    streams = np.stack([noise(7, 0, 20000, stream) for stream in range(4)])
    assert np.array_equal(streams[0], noise(7, 0, 20000))
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 0.03


def engine(target, shape=CHAIN, max_batch=8) -> Engine:
    torch.manual_seed(0)
    drafter = FusedDrafter(tiny_drafter(target, 61), target.backbone.embedding)
    return Engine(target, drafter, shape, max_batch, verify=REJECTION)


def test_greedy_answers_are_those_of_autoregressive_decoding():
    target = tiny_target()
    prompts = [PROMPT, PROMPT[:3], [7, 8]]
    answers = engine(target).generate(prompts, 24)
    assert [answer.tokens for answer in answers] == [a.tokens for a in Engine(target).generate(prompts, 24)]


def test_an_answer_depends_on_prompt_and_seed_and_not_on_the_batch():
    target = tiny_target()
    samplings = [Sampling(temperature=1.0, seed=seed) for seed in range(6)]
    prompts = [PROMPT[: 1 + seed] for seed in range(6)]
    together = engine(target).generate(prompts, 16, samplings)
    alone = [engine(target).generate([p], 16, [s])[0] for p, s in zip(prompts, samplings, strict=True)]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert len({tuple(answer.tokens) for answer in alone}) > 1


def probabilities(prompts: torch.Tensor, temperature: float, top_k: int = ENDED) -> torch.Tensor:
    """Of the target's next token, [B, V]."""
    logits = tiny_model()(prompts).logits[:, -1].double() / temperature
    return logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf).softmax(dim=-1)


@torch.inference_mode()
def third_token(**sampling) -> torch.Tensor:
    """The probability of each third token of the target's answers, and of answers that have ended by then, [V + 1]."""
    prompts, weights = torch.tensor([PROMPT]), torch.ones(1, dtype=torch.double)
    running = torch.arange(ENDED) != tiny_model().config.eos_token_id
    for _ in range(2):
        weights = (weights[:, None] * probabilities(prompts, **sampling) * running).flatten()
        tokens = torch.arange(ENDED).repeat(len(prompts))
        prompts = torch.cat((prompts.repeat_interleave(ENDED, dim=0), tokens[:, None]), dim=1)[weights > 0]
        weights = weights[weights > 0]
    return torch.cat((weights @ probabilities(prompts, **sampling), 1 - weights.sum()[None]))


@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 6}], ids=str)
def test_decoded_tokens_follow_the_target(sampling):
    """The third token of many answers."""
    count, probs = 600, third_token(**sampling).numpy()
    samplings = [Sampling(seed=seed, **sampling) for seed in range(count)]
    answers = engine(tiny_target(), max_batch=64).generate([PROMPT] * count, 3, samplings)
    counts = np.bincount([[*answer.tokens, ENDED, ENDED][2] for answer in answers], minlength=ENDED + 1)
    assert not counts[probs == 0].any()
    frequent = probs * count >= 5
    counts, expected = (np.append(values[frequent], values[~frequent].sum()) for values in (counts, count * probs))
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


def test_trees_pools_and_no_drafter_are_refused():
    target = tiny_target()
    with pytest.raises(ConfigError, match=r"decodes chains, but the tree is 8/3/2; type runtime.top_k=1"):
        engine(target, shape=TreeShape(8, 3, 2))
    drafter = FusedDrafter(tiny_drafter(target, 61), target.backbone.embedding)
    for refused in (None, Pool({"a": drafter}, "static")):
        with pytest.raises(ConfigError, match="needs a drafter that samples"):
            Engine(target, refused, CHAIN, verify=REJECTION)


@pytest.mark.parametrize(
    ("drafter", "pool", "runtime", "line"),
    [
        ("auto", {}, {"top_k": 1}, "got drafter=auto; type drafter=NAME"),
        ("pool", {}, {"top_k": 1}, "got drafter=pool; type drafter=NAME"),
        ("", {}, {"top_k": 1}, "got drafter=none; type drafter=NAME"),
        ("general+store", {}, {"top_k": 1}, r"got drafter=general\+store; type drafter=NAME"),
        ("general", {}, {}, "got runtime.top_k=None; type runtime.top_k=1"),
        ("general", {"scheduler": "ltd"}, {"top_k": 1}, "pool.scheduler=ltd chooses trees"),
    ],
)
def test_settings_that_cannot_be_exact_are_refused_before_anything_is_loaded(drafter, pool, runtime, line):
    with pytest.raises(ConfigError, match=line):
        check_engine(drafter, PoolConfig(**pool), RuntimeConfig(verify=REJECTION, **runtime))


def test_commands_that_compare_answers_refuse_it():
    with pytest.raises(ConfigError, match="only `generate` and `serve` take it"):
        RuntimeConfig(verify=REJECTION).require_match()
