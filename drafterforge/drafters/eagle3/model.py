"""The EAGLE-3 drafter (arXiv 2503.01840): one decoder layer that reads pairs of token embedding and target feature.

Slot j of a sequence pairs token j+1 with the target's feature of position j and predicts token j+2; its rotary
position is j.  The slot of a drafted token reads its parent slot's output instead of a target feature: before the
final norm, or after it if `norm_output` is set.
Axes: N rows (slots of any number of sequences), H hidden, D head width, W draft vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafterforge.drafters.eagle3.forward import Attend
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.kernels.rope import RopeTable, apply_rope


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps).to(
            x.dtype
        )  # undo the upcast of CUDA autocast


class Attention(nn.Module):
    """Projections of the layer's attention; q, k and v read [embedding ; feature], twice the hidden width."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        queries, keys = spec.num_heads * spec.head_dim, spec.num_key_heads * spec.head_dim
        self.q_proj = nn.Linear(2 * spec.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * spec.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * spec.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, spec.hidden_size, bias=False)


class GatedMLP(nn.Module):
    """SiLU-gated feed-forward block."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DrafterLayer(nn.Module):
    """The decoder layer; its parameter names are those of published checkpoints."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.spec = spec
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = Attention(spec)
        self.mlp = GatedMLP(spec)

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        rope: tuple[Tensor, Tensor],
        attend: Attend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Outputs [N', H] of the slots `rows` (None: all), before the final norm.

        embeddings, hidden: [N, H].  rope: from `RopeTable`.  attend(q [N', heads, D], k, v [N, key heads, D]) returns
        [N', heads, D].  Keys and values are computed for all slots, queries only for `rows`.
        """
        spec = self.spec
        normed = self.hidden_norm(hidden)
        x = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)
        if spec.norm_before_residual:
            hidden = normed
        k = self.self_attn.k_proj(x).view(-1, spec.num_key_heads, spec.head_dim)
        v = self.self_attn.v_proj(x).view(-1, spec.num_key_heads, spec.head_dim)
        k = apply_rope(k, *rope)
        if rows is not None:
            x, hidden, rope = x[rows], hidden[rows], (rope[0][rows], rope[1][rows])
        q = apply_rope(self.self_attn.q_proj(x).view(-1, spec.num_heads, spec.head_dim), *rope)
        hidden = hidden + self.self_attn.o_proj(attend(q, k, v).flatten(1))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Drafter(nn.Module):
    """Feature fusion, decoder layer, norm and head over the draft vocabulary."""

    def __init__(self, spec: DrafterSpec, embedding: Tensor) -> None:
        """embedding: the target's, [V, H]; shared, never trained or saved."""
        super().__init__()
        self.spec = spec
        if spec.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(spec.target_hidden_size, spec.rms_norm_eps) for _ in range(3))
        self.fc = nn.Linear(3 * spec.target_hidden_size, spec.hidden_size, bias=False)
        self.midlayer = DrafterLayer(spec)
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(spec.draft_vocab_size, dtype=torch.long))  # target id = draft id + d2t
        # t2d: whether a target id can be drafted
        self.register_buffer("t2d", torch.zeros(spec.vocab_size, dtype=torch.bool))
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.rope = RopeTable(*spec.rotary())

    def set_vocabulary(self, token_ids: Tensor) -> None:
        """Set the draft vocabulary to the target ids [W], ascending."""
        device = self.d2t.device
        token_ids = token_ids.to(device)
        self.d2t.copy_(token_ids - torch.arange(token_ids.numel(), device=device))
        self.t2d.zero_()
        self.t2d[token_ids] = True

    @property
    def token_ids(self) -> Tensor:
        """Target id of every draft id, [W]."""
        return self.d2t + torch.arange(self.d2t.numel(), device=self.d2t.device)

    def embed(self, tokens: Tensor) -> Tensor:
        """Target embeddings [N, H] of target ids [N]."""
        return F.embedding(tokens, self.embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """Project features low|mid|high [N, 3H] to hidden [N, H]."""
        features = features.to(self.fc.weight.dtype)
        if self.spec.fc_norm:
            parts = zip(self.fc_norm, features.chunk(3, dim=-1), strict=True)
            features = torch.cat([norm(part) for norm, part in parts], dim=-1)
        return self.fc(features)

    def layer(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        rope: tuple[Tensor, Tensor],
        attend: Attend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Outputs [N', H] in the form that drafted child slots read; arguments as for `DrafterLayer.forward`."""
        out = self.midlayer(embeddings, hidden, rope, attend, rows)
        return self.norm(out) if self.spec.norm_output else out

    def normed(self, out: Tensor) -> Tensor:
        """Outputs of `layer`, [..., H], after the final norm, which the head reads."""
        return out if self.spec.norm_output else self.norm(out)

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of the positions [N], each [N, 1, D/2]."""
        return self.rope(positions, dtype)

    def logits(self, out: Tensor) -> Tensor:
        """Logits over the draft vocabulary, [N, W], of outputs [N, H] of `layer`."""
        return self.lm_head(self.normed(out))
