"""Targets whose layers are mixtures of experts decode as without a drafter, and as in transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.runtime.engine import Engine
from drafterforge.targets.load import wrap_model
from drafterforge.tree.grow import TreeShape
from tests.models import TINY, tiny_drafter

MODELS = {
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4}),
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"num_experts": 4, "moe_intermediate_size": 16}),
}
WIDE = TreeShape(num_tokens=60, depth=3, top_k=20)  # so that a random drafter's tokens are accepted now and then
PROMPTS = [[5, 6, 7, 8, 9], [3, 4, 10, 11, 12, 13]]


@pytest.mark.parametrize("name", MODELS)
def test_drafting_changes_no_answer_of_a_mixture_of_experts(name):
    config_class, model_class, sizes = MODELS[name]
    torch.manual_seed(1)
    model = model_class(config_class(**TINY, **sizes, num_experts_per_tok=2)).eval()
    target = wrap_model(model, None, name=name, folder=Path("nowhere"))
    expected = [model.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False)[0] for prompt in PROMPTS]
    drafter = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    answers = Engine(target, drafter, WIDE).generate(PROMPTS, 30)
    assert [[*prompt, *answer.tokens] for prompt, answer in zip(PROMPTS, answers, strict=True)] == [
        tokens.tolist() for tokens in expected
    ]
    assert sum(cycle.accepted for answer in answers for cycle in answer.cycles) > 0
