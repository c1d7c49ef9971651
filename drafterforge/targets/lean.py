"""A fused forward pass for the Llama, Mistral, Qwen2 and Qwen3 families, with a preallocated cache.

Its results equal those of `transformers` in float32 (a test compares them), with a third of the operations.
Axes: B batch, T tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from drafterforge.kernels.attention import AttendLayer, Heads
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.kernels.linear import FrozenLinear
from drafterforge.kernels.masks import Mask
from drafterforge.kernels.rope import RopeTable
from drafterforge.targets.taps import taps_of

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def lean_obstacle(config: object) -> str | None:
    """Why the lean path does not support this model; None if it does."""
    if config.model_type not in FAMILIES:
        return f"no lean path for model type {config.model_type!r}"
    if config.hidden_act != "silu":
        return f"hidden_act={config.hidden_act!r}"
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type not in ("default", "linear", "llama3", "yarn"):
        return f"rope type {rope_type!r} depends on the sequence length"
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) if config.model_type == "mistral" else None
    if layer_types != {"full_attention"} or (sliding is not None and sliding < config.max_position_embeddings):
        return "sliding-window attention"
    return None


@dataclass
class LeanLayer:
    """Weights of one decoder layer."""

    input_norm: Tensor
    qkv: FrozenLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: FrozenLinear
    post_norm: Tensor
    gate_up: FrozenLinear
    down: FrozenLinear


class LeanBackbone:
    """Decoder of a causal LM, from token ids to features, final states and logits."""

    def __init__(
        self, model: PreTrainedModel, tapped: bool = True, taps: Sequence[int] = (), rounds: bool = False
    ) -> None:
        """tapped: whether features are needed; if not, their width is 0.  taps: layers; empty: the default ones.

        rounds: see `FrozenLinear`.
        """
        config, decoder = model.config, model.model
        self.rounds = rounds
        self.num_layers = config.num_hidden_layers
        self.taps = taps_of(self.num_layers, tapped, taps)
        self.num_heads, self.num_key_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.num_heads
        self.eps = config.rms_norm_eps
        self.heads = Heads(self.num_heads, self.num_key_heads, self.width)
        self.embedding = decoder.embed_tokens.weight.detach()
        self.kernels = kernels_of(self.embedding)
        self.norm = decoder.norm.weight.detach()
        head = model.get_output_embeddings()
        self.head = self._linear(head)
        self.rope = RopeTable(decoder.rotary_emb.inv_freq, decoder.rotary_emb.attention_scaling)
        self.layers = [self._layer(layer) for layer in decoder.layers]
        self.packed = self.kernels.pack_decoder(self.layers, self.heads, self.eps)

    def _linear(self, *parts: torch.nn.Linear) -> FrozenLinear:
        """One layer for linear layers that read the same input."""
        weight, bias = parts[0].weight, parts[0].bias
        if len(parts) > 1:
            weight = torch.cat([part.weight for part in parts])
            bias = None if bias is None else torch.cat([part.bias for part in parts])
        return FrozenLinear(weight, bias, rounds=self.rounds)

    def _layer(self, layer: torch.nn.Module) -> LeanLayer:
        attention, mlp = layer.self_attn, layer.mlp
        q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        return LeanLayer(
            input_norm=layer.input_layernorm.weight.detach(),
            qkv=self._linear(attention.q_proj, attention.k_proj, attention.v_proj),
            q_norm=None if q_norm is None else q_norm.weight.detach(),
            k_norm=None if k_norm is None else k_norm.weight.detach(),
            out=self._linear(attention.o_proj),
            post_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=self._linear(mlp.gate_proj, mlp.up_proj),
            down=self._linear(mlp.down_proj),
        )

    @property
    def head_weight(self) -> Tensor:
        """Weight of the output head, [V, H]."""
        return self.head.weight

    def new_cache(self, batch: int) -> KeyValueCache:
        """An empty cache for `batch` sequences."""
        weight = self.embedding
        return KeyValueCache(self.num_layers, batch, self.num_key_heads, self.width, weight.dtype, weight.device)

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KeyValueCache | None,
        mask: Mask | None,
        invariant: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Final states after the norm [B, T, H], and features low|mid|high [B, T, 3H], of tokens [B, T].

        positions: [B, T].  cache: read and extended by this pass; None: attend within `tokens` only.
        mask: additive [B or 1, T, S], or from `level_mask`; None: causal attention of a sequence that starts at slot 0.
        invariant: make results batch-invariant: a token's values are bit-identical whatever else is in the pass.
        """
        batch, length = tokens.shape
        x = F.embedding(tokens, self.embedding).view(batch * length, -1)
        if self.packed is not None and self.packed.takes(tokens, length, cache, mask):
            features = self.packed(x, positions, self.rope, cache, mask, self.taps)
        else:
            x, features = self._layer_by_layer(x, positions, cache, mask, invariant)
        final = self.kernels.rms_norm(x, self.norm, self.eps)
        return final.view(batch, length, -1), features.view(batch, length, -1)

    def _layer_by_layer(
        self, x: Tensor, positions: Tensor, cache: KeyValueCache | None, mask: Mask | None, invariant: bool
    ) -> tuple[Tensor, Tensor]:
        """Outputs [B * T, H] of the last layer and features [B * T, 3H]; x: inputs of the first, [B * T, H]."""
        rms_norm, swiglu = self.kernels.rms_norm, self.kernels.swiglu
        attend = self._attention(x, positions, cache, mask, invariant)
        num_rotated = self.num_heads + self.num_key_heads
        tapped = {}
        for index, layer in enumerate(self.layers):
            if index in self.taps:
                tapped[index] = x
            qkv = layer.qkv(rms_norm(x, layer.input_norm, self.eps), invariant)
            qkv = qkv.view(len(x), num_rotated + self.num_key_heads, self.width)
            if layer.q_norm is not None:
                q = rms_norm(qkv[:, : self.num_heads], layer.q_norm, self.eps)
                k = rms_norm(qkv[:, self.num_heads : num_rotated], layer.k_norm, self.eps)
                qkv = torch.cat((q, k, qkv[:, num_rotated:]), dim=1)
            x = layer.out(attend(index, qkv), invariant, added=x)
            gated = swiglu(layer.gate_up(rms_norm(x, layer.post_norm, self.eps), invariant))
            x = layer.down(gated, invariant, added=x)
        return x, torch.cat([tapped[index] for index in self.taps], dim=-1) if self.taps else x[:, :0]

    def _attention(
        self, x: Tensor, positions: Tensor, cache: KeyValueCache | None, mask: Mask | None, invariant: bool
    ) -> AttendLayer:
        """attend(index of a layer, its qkv [B*T, heads, D]) -> [B*T, Hq*D]; also writes the layer's cache."""
        cos, sin = self.rope(positions.reshape(-1), x.dtype)
        return self.kernels.rotated_attention(cos, sin, positions.shape, self.heads, cache, mask, invariant)

    def normed(self, outputs: Tensor) -> Tensor:
        """Final states [T, H] by the last layer's outputs [T, H]."""
        return self.kernels.rms_norm(outputs, self.norm, self.eps)

    def logits(self, states: Tensor, invariant: bool = False) -> Tensor:
        """Logits [..., V] of final states [..., H]."""
        with torch.inference_mode():
            return self.head(states, invariant)
