"""The forward pass of EAGLE-3 drafters that decode: one drafter, or N stacked ones that process the same tokens.

Axes: R rows, H hidden, W draft vocabulary; stacked drafters have N in front, which `...` stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.kernels.dispatch import Kernels
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
        if self.gains["input_norm"].dim() > 1:
            embeddings = embeddings.expand_as(hidden)
        normed = self._norm(hidden, "hidden_norm")
        x = torch.cat((self._norm(embeddings, "input_norm").expand_as(hidden), normed), dim=-1)
        if spec.norm_before_residual:
            hidden = normed
        kv = linears["kv"](x).unflatten(-1, (2 * spec.num_key_heads, spec.head_dim))
        k, v = apply_rope(kv[..., : spec.num_key_heads, :], *rope), kv[..., spec.num_key_heads :, :]
        if rows is not None:
            x, hidden, rope = x[..., rows, :], hidden[..., rows, :], (rope[0][rows], rope[1][rows])
        q = apply_rope(linears["q"](x).unflatten(-1, (spec.num_heads, spec.head_dim)), *rope)
        hidden = hidden + linears["out"](attend(q, k, v).flatten(-2))
        gated = self.kernels.swiglu(linears["gate_up"](self._norm(hidden, "post_norm")))
        out = hidden + linears["down"](gated)
        return self._norm(out, "norm") if spec.norm_output else out

    def normed(self, out: Tensor) -> Tensor:
        """Outputs of `layer` after the final norm, which the head reads."""
        return out if self.spec.norm_output else self._norm(out, "norm")

    def logits(self, out: Tensor) -> Tensor:
        """Draft logits [..., R, W] of outputs [..., R, H] of `layer`."""
        return self.linears["head"](self.normed(out))
