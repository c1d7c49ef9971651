"""The forward pass of EAGLE-3 drafters that decode: one drafter, or N stacked ones that process the same tokens.

Axes: R rows, H hidden, W draft vocabulary; stacked drafters have N in front, which `...` stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.kernels.attention import Heads
from drafterforge.kernels.dispatch import Kernels, PackedDraftLayer
from drafterforge.kernels.rope import RopeTable, apply_rope

# attend(q [..., R', heads, D], k, v [..., R, key heads, D]) gives [..., R', heads, D]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Projection = Callable[[Tensor], Tensor]


class DecodingPass:
    """The layer with fused projections.  Subclasses set the attributes.

    A gain of stacked drafters that do not share it is [N, 1, H] instead of [H], that of `fc_norm` [N, 1, 3, H].
    """

    spec: DrafterSpec
    embedding: Tensor
    linears: Mapping[str, Projection]
    gains: dict[str, Tensor]
    rope: RopeTable
    kernels: Kernels
    packed: PackedDraftLayer | None = None  # the layer and the head in one call

    def _pack(self) -> PackedDraftLayer | None:
        """The layer and the head in one call; None if the kernels have no such call."""
        spec = self.spec
        heads = Heads(spec.num_heads, spec.num_key_heads, spec.head_dim)
        flags = spec.norm_before_residual, spec.norm_output
        return self.kernels.pack_draft_layer(self.embedding, self.linears, self.gains, heads, spec.rms_norm_eps, *flags)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self.kernels.rms_norm(x, self.gains[name], self.spec.rms_norm_eps)

    def embed(self, tokens: Tensor) -> Tensor:
        """Target embeddings [R, H] of tokens [R]."""
        return F.embedding(tokens, self.embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """Project features low|mid|high [R, 3H], each third normed if the spec says so, to hidden [..., R, H]."""
        if self.spec.fc_norm:
            gains = self.gains["fc_norm"]
            if gains.dim() > 2:
                features = features.expand(gains.shape[0], -1, -1)
            features = features.unflatten(-1, gains.shape[-2:])
            features = self.kernels.rms_norm(features, gains, self.spec.rms_norm_eps).flatten(-2)
        return self.linears["fc"](features)

    def layer(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        attend: Attend,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """Outputs [..., R', H] in the form that drafted child slots read; `rows` selects R' of R (None: all).

        embeddings: [R, H].  hidden: [..., R, H].  positions: [R].
        """
        spec, linears = self.spec, self.linears
        rope = self.rope(positions, hidden.dtype)
        x, hidden = self._inputs(embeddings, hidden)
        k, v = self._keys(x, rope)
        if rows is not None:
            x, hidden, rope = x[..., rows, :], hidden[..., rows, :], (rope[0][rows], rope[1][rows])
        q = apply_rope(linears["q"](x).unflatten(-1, (spec.num_heads, spec.head_dim)), *rope)
        hidden = hidden + linears["out"](attend(q, k, v).flatten(-2))
        gated = self.kernels.swiglu(linears["gate_up"](self._norm(hidden, "post_norm")))
        out = hidden + linears["down"](gated)
        return self._norm(out, "norm") if spec.norm_output else out

    def keys(self, embeddings: Tensor, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [..., R, key heads, D] as `layer` computes them, without attention; arguments as there."""
        x, _ = self._inputs(embeddings, hidden)
        return self._keys(x, self.rope(positions, hidden.dtype))

    def _inputs(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the projections read, [..., R, 2H], and what their output is added to, [..., R, H]."""
        if self.gains["input_norm"].dim() > 1:
            embeddings = embeddings.expand_as(hidden)
        normed = self._norm(hidden, "hidden_norm")
        x = torch.cat((self._norm(embeddings, "input_norm").expand_as(hidden), normed), dim=-1)
        return x, normed if self.spec.norm_before_residual else hidden

    def _keys(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        spec = self.spec
        kv = self.linears["kv"](x).unflatten(-1, (2 * spec.num_key_heads, spec.head_dim))
        return apply_rope(kv[..., : spec.num_key_heads, :], *rope), kv[..., spec.num_key_heads :, :]

    def normed(self, out: Tensor) -> Tensor:
        """Outputs of `layer` after the final norm, which the head reads."""
        return out if self.spec.norm_output else self._norm(out, "norm")

    def logits(self, out: Tensor) -> Tensor:
        """Draft logits [..., R, W] of outputs [..., R, H] of `layer`."""
        return self.linears["head"](self.normed(out))
