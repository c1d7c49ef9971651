"""A small causal LM that is trained as a drafter: the target's architecture and vocabulary, fewer layers.

Axes: N positions of packed sequences, H hidden, V vocabulary, D head width.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from drafterforge.config.drafter import CausalLMConfig
from drafterforge.drafters.eagle3.init import TargetWeights
from drafterforge.errors import ConfigError
from drafterforge.targets.stored import read_config

PACKED = "drafterforge_packed"  # name of `packed_attention` in transformers


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    lengths: list[int],
    scaling: float,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each packed sequence, never across sequences, [1, N, Hq, D].

    query: [1, Hq, N, D].  key, value: [1, Hk, N, D].  lengths: of the sequences.
    """
    parts = zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True)
    attended = [
        F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True) for q, k, v in parts
    ]
    return torch.cat(attended, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED, packed_attention)


class CausalLMDrafter(nn.Module):
    """A causal LM over packed sequences; frozen embeddings are not in its state dict."""

    def __init__(self, model: PreTrainedModel, train_embeddings: bool) -> None:
        """model: must not be used afterwards, its modules are moved here."""
        super().__init__()
        self.config = model.config
        model.set_attn_implementation(PACKED)
        weights = {"embedding": model.get_input_embeddings().weight}
        if not self.config.tie_word_embeddings:
            weights["head"] = model.get_output_embeddings().weight
        for name, weight in weights.items():
            if train_embeddings:
                self.register_parameter(name, nn.Parameter(weight.detach()))
            else:
                self.register_buffer(name, weight.detach(), persistent=False)
        self.decoder = model.model
        self.decoder.embed_tokens = None  # replaced by `embedding`

    @property
    def head_weight(self) -> Tensor:
        """The output head [V, H]; the embedding if they are tied."""
        return self.embedding if self.config.tie_word_embeddings else self.head

    @property
    def token_ids(self) -> Tensor:
        """Target ids that can be drafted: all, [V]."""
        return torch.arange(self.embedding.shape[0], device=self.embedding.device)

    def forward(self, tokens: Tensor, positions: Tensor, lengths: list[int]) -> Tensor:
        """Final normed states [N, H] of packed sequences.  tokens, positions: [N]."""
        outputs = self.decoder(
            inputs_embeds=F.embedding(tokens, self.embedding)[None],
            position_ids=positions[None],
            use_cache=False,
            lengths=lengths,
        )
        return outputs.last_hidden_state[0]

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype = torch.bfloat16) -> None:
        """Write a Hugging Face folder, tokenizer included."""
        state = {f"model.{name}": value for name, value in self.decoder.state_dict().items()}
        state["model.embed_tokens.weight"] = self.embedding
        if not self.config.tie_word_embeddings:
            state["lm_head.weight"] = self.head
        tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in state.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = copy.deepcopy(self.config)
        config.dtype = dtype
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def new_model(config: PretrainedConfig) -> PreTrainedModel:
    """A causal LM with random weights, fp32."""
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")


def open_model(folder: Path) -> PreTrainedModel:
    """The causal LM that `CausalLMDrafter.save` wrote, fp32."""
    config = read_config(folder)
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, use_safetensors=True)


def small_config(target: PretrainedConfig, size: CausalLMConfig) -> PretrainedConfig:
    """The target's config in another size; dimensions that `size` does not set keep the target's proportions."""
    config = copy.deepcopy(target)
    width = config.hidden_size = size.hidden_size or target.hidden_size
    head_dim = getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads
    if width != target.hidden_size:
        config.tie_word_embeddings = True
        config.num_attention_heads = config.num_key_value_heads = max(1, width // head_dim)
        config.head_dim = width // config.num_attention_heads
        config.intermediate_size = target.intermediate_size * width // target.hidden_size
    if size.num_heads:
        config.num_attention_heads = config.num_key_value_heads = size.num_heads
        config.head_dim = width // size.num_heads
    config.intermediate_size = size.intermediate_size or config.intermediate_size
    config.num_hidden_layers = size.num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * size.num_layers
    heads = config.num_attention_heads
    if (size.num_heads or width != target.hidden_size) and width % (2 * heads):
        raise ConfigError(
            f"drafter.causal_lm.hidden_size={width} does not split into {heads} heads of an even width; "
            f"type drafter.causal_lm.num_heads=NUMBER or another hidden_size"
        )
    return config


def spaced_layers(count: int, total: int) -> list[int]:
    """Indices of `count` evenly spaced layers out of `total`, with the first and the last; the last if count is 1."""
    if count == 1:
        return [total - 1]
    return [round(index * (total - 1) / (count - 1)) for index in range(count)]


def copy_layers(model: PreTrainedModel, weights: TargetWeights, target: PretrainedConfig) -> None:
    """Copy evenly spaced layers and the final norm of the target into a model with equal layer shapes."""
    config = model.config
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        size, target_size = getattr(config, key), getattr(target, key)
        if size != target_size:
            raise ConfigError(
                f"drafter.init=warm copies layers of the target, whose {key} is {target_size}, not {size}; "
                "type drafter.init=scratch"
            )
    if config.num_hidden_layers > target.num_hidden_layers:
        raise ConfigError(
            f"drafter.init=warm copies {config.num_hidden_layers} layers of the target, which has "
            f"{target.num_hidden_layers}; type drafter.init=scratch or drafter.causal_lm.num_layers=2"
        )
    indices = spaced_layers(config.num_hidden_layers, target.num_hidden_layers)
    with torch.no_grad():
        for layer, index in zip(model.model.layers, indices, strict=True):
            for name, parameter in layer.named_parameters():
                parameter.copy_(weights[f"model.layers.{index}.{name}"])
        model.model.norm.weight.copy_(weights["model.norm.weight"])


def copy_embeddings(model: PreTrainedModel, embedding: Tensor, head: Tensor) -> bool:
    """Copy the target's embedding and head [V, H] into the model; False, without changes, if its width differs."""
    weight = model.get_input_embeddings().weight
    if weight.shape != embedding.shape:
        return False
    with torch.no_grad():
        weight.copy_(embedding)
        if not model.config.tie_word_embeddings:
            model.get_output_embeddings().weight.copy_(head)
    return True
