"""Stacked weights of drafters with equal architectures, which process the same tokens in one pass.

LoRA experts of one generalist share its weights, which are loaded from memory once; their additions are batched.
Axes: N drafters, R rows, H hidden, r rank, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.drafters.eagle3.fused import PROJECTIONS, FusedDrafter, norm_each
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.spec import FLAGS
from drafterforge.errors import DrafterforgeError
from drafterforge.kernels.linear import AdaptedLinear, FrozenLinear
from drafterforge.kernels.rope import apply_rope

# attend(q [N, R, heads, D], k, v [N, R, key heads, D]) gives [N, R, heads, D]
StackedAttend = Callable[[Tensor, Tensor, Tensor], Tensor]


class StackedLowRank:
    """Low-rank additions of n drafters to one base projection, zero-padded to the largest rank."""

    def __init__(self, linears: Sequence[FrozenLinear | AdaptedLinear]) -> None:
        """linears: of one base; their additions become views of the stacked tensors."""
        lows = [linear.low if isinstance(linear, AdaptedLinear) else None for linear in linears]
        weight = base_of(linears[0]).weight
        count, rank = len(lows), max(low.down.shape[0] for low in lows if low is not None)
        self.down = weight.new_zeros(count, rank, weight.shape[1])
        self.up = weight.new_zeros(count, rank, weight.shape[0])  # this layout avoids a copy in every product
        for index, low in enumerate(lows):
            if low is not None:
                view = LowRank(self.down[index, : low.down.shape[0]], self.up[index, : low.up.shape[1]].t())
                view.down.copy_(low.down)
                view.up.copy_(low.up)
                linears[index].low = view

    def add(self, out: Tensor, x: Tensor) -> Tensor:
        """out + x @ down.T @ up, [n, R, out].  x: [n, R, in] or shared [R, in].  out: [n or 1, R, out]."""
        count = self.down.shape[0]
        if x.dim() == 2:
            low = F.linear(x, self.down.flatten(0, 1)).unflatten(1, (count, -1)).transpose(0, 1)
        else:
            low = torch.bmm(x, self.down.transpose(1, 2))
        return torch.baddbmm(out.expand(count, -1, -1), low, self.up)


class StackedLinear:
    """One projection of N drafters."""

    def __init__(self, linears: Sequence[FrozenLinear | AdaptedLinear]) -> None:
        """linears: those that share a base are adjacent."""
        self.families: list[tuple[slice, FrozenLinear, StackedLowRank | None]] = []
        start = 0
        for _, group in groupby(linears, key=lambda linear: id(base_of(linear))):
            members = list(group)
            part = slice(start, start + len(members))
            adapted = any(isinstance(linear, AdaptedLinear) for linear in members)
            self.families.append((part, base_of(members[0]), StackedLowRank(members) if adapted else None))
            start = part.stop

    def __call__(self, x: Tensor) -> Tensor:
        """x: [N, R, in] or shared [R, in].  Returns [N, R, out]."""
        outputs = [self._family(x, *family) for family in self.families]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @staticmethod
    def _family(x: Tensor, part: slice, base: FrozenLinear, additions: StackedLowRank | None) -> Tensor:
        inputs = x if x.dim() == 2 else x[part]
        out = base(inputs)
        if additions is not None:
            return additions.add(out, inputs)
        return out.expand(part.stop - part.start, -1, -1) if x.dim() == 2 else out


def base_of(linear: FrozenLinear | AdaptedLinear) -> FrozenLinear:
    """The projection without its low-rank addition."""
    return linear.base if isinstance(linear, AdaptedLinear) else linear


def family_order(drafters: Sequence[FusedDrafter]) -> list[int]:
    """An order of the drafters in which experts of one generalist are adjacent, after the generalist."""
    roots = [drafter.generalist or drafter for drafter in drafters]
    first = {id(root): index for index, root in reversed(list(enumerate(roots)))}
    return sorted(range(len(drafters)), key=lambda index: (first[id(roots[index])], index))


class StackedDrafters:
    """N drafters with equal architectures; each member still drafts by itself as a `FusedDrafter`."""

    def __init__(self, members: Sequence[FusedDrafter]) -> None:
        """members: sorted by `family_order`."""
        self.members, self.spec, self.embedding = list(members), members[0].spec, members[0].embedding
        for member in members:
            if signature(member) != signature(members[0]):
                raise DrafterforgeError(f"{signature(member)} and {signature(members[0])} do not stack")
        self.linears = {name: StackedLinear([member.linears[name] for member in members]) for name in PROJECTIONS}
        self.gains = {name: self._gain(name) for name in members[0].gains}
        self.token_ids = torch.stack([member.token_ids for member in members])  # [N, W]
        self.rope, self.kernels = members[0].rope, members[0].kernels

    def _gain(self, name: str) -> Tensor:
        gains = [member.gains[name] for member in self.members]
        alike = all(gain is gains[0] for gain in gains)
        return gains[0] if alike else torch.stack(gains)[:, None]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self.kernels.rms_norm(x, self.gains[name], self.spec.rms_norm_eps)

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """Project features [R, 3H] to hidden [N, R, H]."""
        if self.spec.fc_norm:
            gains = self.gains["fc_norm"]
            alike = gains.dim() == 2
            features = features if alike else features.expand(len(self.members), -1, -1)
            features = norm_each(features, gains, self.spec.rms_norm_eps)
        return self.linears["fc"](features)

    def layer(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        attend: StackedAttend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """As `FusedDrafter.layer` for all drafters, [N, R', H].  embeddings: [R, H].  hidden: [N, R, H]."""
        spec, linears = self.spec, self.linears
        rope = self.rope(positions, hidden.dtype)
        alike = self.gains["input_norm"].dim() == 1
        embedded = self._norm(embeddings if alike else embeddings.expand_as(hidden), "input_norm")
        normed = self._norm(hidden, "hidden_norm")
        x = torch.cat((embedded.expand_as(hidden), normed), dim=-1)
        if spec.norm_before_residual:
            hidden = normed
        kv = linears["kv"](x).unflatten(-1, (2 * spec.num_key_heads, spec.head_dim))
        k, v = apply_rope(kv[:, :, : spec.num_key_heads], *rope), kv[:, :, spec.num_key_heads :]
        if rows is not None:
            x, hidden, rope = x[:, rows], hidden[:, rows], (rope[0][rows], rope[1][rows])
        q = apply_rope(linears["q"](x).unflatten(-1, (spec.num_heads, spec.head_dim)), *rope)
        hidden = hidden + linears["out"](attend(q, k, v).flatten(2))
        gated = self.kernels.swiglu(linears["gate_up"](self._norm(hidden, "post_norm")))
        out = hidden + linears["down"](gated)
        return self._norm(out, "norm") if spec.norm_output else out

    def logits(self, out: Tensor) -> Tensor:
        """Draft logits [N, R, W] of outputs [N, R, H] of `layer`."""
        return self.linears["head"](out if self.spec.norm_output else self._norm(out, "norm"))


def signature(drafter: FusedDrafter) -> tuple:
    """Shapes and constants that must be equal for drafters to stack."""
    spec = drafter.spec
    shapes = tuple(base_of(linear).weight.shape for linear in drafter.linears.values())
    constants = spec.num_heads, spec.head_dim, spec.rms_norm_eps, str(spec.rope_parameters)
    return shapes, *constants, *(getattr(spec, flag) for flag in FLAGS), drafter.embedding.dtype
