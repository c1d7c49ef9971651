"""Tiny random targets and drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.targets.load import Target, wrap_model

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
NORMS = {  # EAGLE-3.1's two norms in every combination
    "EAGLE-3": {},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "EAGLE-3.1": {"fc_norm": True, "norm_output": True},
}
TINY = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def tiny_model(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: object) -> torch.nn.Module:
    """A random causal LM of a family, with spread-out logits."""
    config_class, model_class = FAMILIES[family]
    extra = {"sliding_window": None} if family == "mistral" else {}
    torch.manual_seed(1)
    model = model_class(config_class(**{**TINY, **extra, **changes})).to(dtype).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model


def tiny_target(
    family: str = "llama",
    forward: str = "auto",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    taps: Sequence[int] = (),
    **changes: object,
) -> Target:
    """A `Target` around a tiny model, without files or tokenizer."""
    model = tiny_model(family, dtype, **changes).to(device)
    return wrap_model(model, None, name=f"tiny-{family}", folder=Path("nowhere"), forward=forward, taps=taps)


def tiny_drafter(target: Target, draft_vocab_size: int = 40, **changes: object) -> Eagle3Drafter:
    """A random drafter for a tiny target, drafting every id that is not a multiple of three first."""
    spec = replace(DrafterSpec.for_target(target.config, target.backbone.taps, draft_vocab_size), **changes)
    drafter = Eagle3Drafter(spec, target.backbone.embedding.float())
    scratch_init(drafter, std=0.2)
    ids = torch.arange(target.config.vocab_size)
    order = torch.cat((ids[ids % 3 != 0], ids[ids % 3 == 0]))
    drafter.set_vocabulary(order[: spec.draft_vocab_size].sort().values)
    return drafter.eval()


def uneven(drafter: Eagle3Drafter) -> Eagle3Drafter:
    """The drafter with norms whose gains are not all one."""
    for name, parameter in drafter.named_parameters():
        if "norm" in name:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return drafter
