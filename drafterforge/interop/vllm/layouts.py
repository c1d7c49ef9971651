"""The layouts that vLLM reads: `speculators`, of the library of that name, and `plain`, which is SGLang's."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import torch

from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.interop.layout import TargetFacts, dtype_name, served_spec, tensors_of, write_model
from drafterforge.interop.sglang.layout import write_plain

LAYOUTS = ("speculators", "plain")
OURS, THEIRS = "midlayer.", "layers.0."  # prefix of the decoder layer's tensors, here and in speculators
SPECULATORS_VERSION = "0.9.0"  # of the config format
LAYER_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "initializer_range",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "layer_types",
    "use_sliding_window",
    "sliding_window",
)


def write_vllm(
    folder: Path,
    drafter: Eagle3Drafter,
    target: TargetFacts,
    out: Path,
    layout: str = "speculators",
    dtype: torch.dtype | None = None,
) -> str:
    """Write the drafter to `folder`; returns the command that serves the target with it.

    out: the final path of `folder`.  dtype: of the weights; None: the smallest lossless one.
    """
    if layout == "plain":
        write_plain(folder, drafter, target, dtype)
        return serve_plain(target, out, drafter.spec)
    tensors = tensors_of(drafter, dtype)
    config = speculators_config(served_spec(drafter.spec, target.config), target, dtype_name(tensors))
    named = {name.replace(OURS, THEIRS, 1): tensor for name, tensor in tensors.items()}
    write_model(folder, config, {**named, "embed_tokens.weight": target.embedding}, "speculators")
    return f"vllm serve {shlex.quote(str(out))} --dtype {target.dtype}"  # the config names the target


def serve_plain(target: TargetFacts, out: Path, spec: DrafterSpec) -> str:
    """The command to serve the target with a plain drafter."""
    drafting = json.dumps({"method": spec.method, "model": str(out), "num_speculative_tokens": spec.served_tokens})
    return f"vllm serve {shlex.quote(target.model)} --speculative-config {shlex.quote(drafting)} --dtype {target.dtype}"


def speculators_config(spec: DrafterSpec, target: TargetFacts, dtype: str) -> dict[str, Any]:
    """The `config.json` of speculators; all keys are explicit, as programs differ in their defaults."""
    flat = spec.to_config(dtype)
    return {
        "architectures": [spec.speculators_model],
        "speculators_model_type": spec.method,
        "speculators_version": SPECULATORS_VERSION,
        "transformer_layer_config": {key: flat[key] for key in LAYER_KEYS if key in flat},
        "draft_vocab_size": spec.draft_vocab_size,
        "target_hidden_size": spec.target_hidden_size,
        **spec.speculators_keys(),
        "tie_word_embeddings": False,
        "dtype": dtype,
        "speculators_config": {
            "algorithm": spec.method,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": spec.served_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": target.model, "architectures": target.architectures},
        },
    }
