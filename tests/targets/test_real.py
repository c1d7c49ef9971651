"""The embedded default target: the engine decodes the text of transformers, with and without a drafter."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafterforge.config.target import TargetConfig
from drafterforge.data.chat import prompt_ids
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.init import TargetWeights, warm_init
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ArtifactError
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.targets.load import Target, load_target
from drafterforge.targets.smollm2 import ensure_smollm2
from drafterforge.tree.grow import TreeShape

pytestmark = pytest.mark.slow
TEXTS = ("Write a SQL query that counts users by country.", "What is 17 times 23?", "Name three rivers in Europe.")
COUNT = 16


@pytest.fixture(scope="module")
def real() -> Target:
    try:
        ensure_smollm2()
    except ArtifactError as error:
        pytest.skip(f"the embedded target is not here and cannot be fetched: {error}")
    return load_target(TargetConfig(dtype="float32"))


@pytest.fixture(scope="module")
def prompts(real) -> list[list[int]]:
    return [prompt_ids(real.tokenizer, [{"role": "user", "content": text}]) for text in TEXTS]


@pytest.fixture(scope="module")
def plain(real, prompts) -> list[list[int]]:
    """Autoregressive answers of the engine."""
    return [Engine(real).generate([prompt], COUNT)[0].tokens for prompt in prompts]


def test_autoregressive_answers_equal_hf_generate(real, prompts, plain):
    model = AutoModelForCausalLM.from_pretrained(real.folder, dtype=torch.float32).eval()
    for prompt, answer in zip(prompts, plain, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, do_sample=False)
        assert answer == expected[0, len(prompt) :].tolist()


def test_tree_decoding_with_a_warm_drafter_equals_autoregressive_decoding(real, prompts, plain):
    spec = DrafterSpec.for_target(real.config, real.backbone.taps, 2048)
    drafter = Eagle3Drafter(spec, real.backbone.embedding)
    drafter.set_vocabulary(torch.arange(spec.draft_vocab_size))
    warm_init(drafter, TargetWeights(real.folder), real.config.num_hidden_layers)
    engine = Engine(real, FusedDrafter(drafter, real.backbone.embedding), TreeShape(12, 4, 3))
    answers = [engine.generate([prompt], COUNT)[0] for prompt in prompts]
    assert [answer.tokens for answer in answers] == plain
    assert max(answer.mat for answer in answers) > 1


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, top_p=0.95, seed=5)], ids=str)
def test_retrieval_in_a_batch_equals_autoregressive_decoding_one_by_one(real, prompts, sampling):
    expected = [Engine(real).generate([prompt], COUNT, sampling)[0] for prompt in prompts]
    engine = Engine(real, Retrieval(min_expected=0.0), TreeShape(12, 8, 3))
    answers = engine.generate(prompts, COUNT, sampling)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    assert [answer.text for answer in answers] == [answer.text for answer in expected]


def test_invariant_bfloat16_decodes_in_trees_and_batches_as_autoregressively(prompts):
    half = load_target(TargetConfig(dtype="bfloat16"))
    expected = [Engine(half, numerics="invariant").generate([prompt], COUNT)[0].tokens for prompt in prompts]
    engine = Engine(half, Retrieval(min_expected=0.0), TreeShape(12, 8, 3), numerics="invariant")
    assert [answer.tokens for answer in engine.generate(prompts, COUNT)] == expected
