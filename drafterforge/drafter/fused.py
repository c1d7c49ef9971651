"""An `Eagle3Drafter` for decoding: fused, prepacked projections; the module is its twin in tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.drafter.eagle3 import Attend, Eagle3Drafter
from drafterforge.kernels.linear import FrozenLinear
from drafterforge.kernels.norm import rms_norm
from drafterforge.kernels.rope import apply_rope


class FusedDrafter:
    """Same numbers as the module, for inference only.  Axes: N rows, H hidden, W draft vocabulary."""

    def __init__(self, drafter: Eagle3Drafter, embedding: Tensor) -> None:
        """embedding: the target's [V, H], in the dtype and on the device to decode with."""
        self.spec, self.embedding = drafter.spec, embedding
        layer, attention, mlp = drafter.midlayer, drafter.midlayer.self_attn, drafter.midlayer.mlp

        def cast(parameter: Tensor) -> Tensor:
            return parameter.detach().to(device=embedding.device, dtype=embedding.dtype)

        def linear(*parts: torch.nn.Linear) -> FrozenLinear:
            return FrozenLinear(torch.cat([cast(part.weight) for part in parts]))

        self.fc, self.head = linear(drafter.fc), linear(drafter.lm_head)
        self.q, self.kv, self.out = (
            linear(attention.q_proj),
            linear(attention.k_proj, attention.v_proj),
            linear(attention.o_proj),
        )
        self.gate_up, self.down = linear(mlp.gate_proj, mlp.up_proj), linear(mlp.down_proj)
        self.input_norm, self.hidden_norm = (
            cast(layer.input_layernorm.weight),
            cast(layer.hidden_norm.weight),
        )
        self.post_norm, self.norm = (
            cast(layer.post_attention_layernorm.weight),
            cast(drafter.norm.weight),
        )
        self.token_ids = drafter.token_ids.to(embedding.device)
        self.rope = drafter.rope

    def _norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return rms_norm(x, gain, self.spec.rms_norm_eps)

    def embed(self, tokens: Tensor) -> Tensor:
        """Target embeddings [N, H]."""
        return F.embedding(tokens, self.embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """Features [N, 3H] to hidden [N, H]."""
        return self.fc(features)

    def layer(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        attend: Attend,
        rows: slice | None = None,
    ) -> Tensor:
        """As `DrafterLayer.forward`, from positions [N] instead of a rope."""
        spec = self.spec
        rope = self.rope(positions, hidden.dtype)
        x = torch.cat((self._norm(embeddings, self.input_norm), self._norm(hidden, self.hidden_norm)), dim=-1)
        kv = self.kv(x).view(-1, 2 * spec.num_key_heads, spec.head_dim)
        k, v = apply_rope(kv[:, : spec.num_key_heads], *rope), kv[:, spec.num_key_heads :]
        if rows is not None:
            x, hidden, rope = x[rows], hidden[rows], (rope[0][rows], rope[1][rows])
        q = apply_rope(self.q(x).view(-1, spec.num_heads, spec.head_dim), *rope)
        hidden = hidden + self.out(attend(q, k, v).flatten(1))
        gate, up = self.gate_up(self._norm(hidden, self.post_norm)).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * up)

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [N, W]."""
        return self.head(self._norm(hidden, self.norm))
