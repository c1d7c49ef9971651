"""Stacked weights of drafters with equal architectures, which process the same tokens in one pass.

LoRA experts of one generalist share its weights, which are loaded from memory once; their additions are batched.
Axes: N drafters, R rows, H hidden, r rank, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.drafters.eagle3.forward import DecodingPass
from drafterforge.drafters.eagle3.fused import PROJECTIONS, FusedDrafter
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.spec import FLAGS
from drafterforge.drafters.judging import draft_id_table
from drafterforge.errors import DrafterforgeError
from drafterforge.kernels.dispatch import PackedDraftLayer, kernels_of
from drafterforge.kernels.linear import AdaptedLinear, FrozenLinear, Packed, pack_additions


class StackedLowRank:
    """Low-rank additions of n drafters to one base projection, zero-padded to the largest rank."""

    def __init__(self, linears: Sequence[FrozenLinear | AdaptedLinear]) -> None:
        """linears: of one base; their additions become views of the stacked tensors."""
        lows = [linear.low if isinstance(linear, AdaptedLinear) else None for linear in linears]
        weight = base_of(linears[0]).weight
        count, rank = len(lows), max(low.down.shape[0] for low in lows if low is not None)
        self.down = weight.new_zeros(count, rank, weight.shape[1])
        self.up = weight.new_zeros(count, rank, weight.shape[0])  # this layout avoids a copy in every product
        self.before = lows  # graphs captured earlier read them
        for index, low in enumerate(lows):
            if low is not None:
                view = LowRank(self.down[index, : low.down.shape[0]], self.up[index, : low.up.shape[1]].t())
                view.down.copy_(low.down)
                view.up.copy_(low.up)
                linears[index].low = view

    def add(self, out: Tensor, x: Tensor) -> Tensor:
        """out + x @ down.T @ up, [n, R, out].  x: [n, R, in] or shared [R, in].  out: [n or 1, R, out]."""
        return kernels_of(x).add_low_rank(out, x, self.down, self.up)

    def add_by_row(self, out: Tensor, x: Tensor, experts: Tensor) -> Tensor:
        """The same with one drafter for each row, [R, out].  x: [R, in].  out: [R, out].  experts: [R]."""
        return kernels_of(x).add_expert_low_rank(out, x, self.down, self.up, experts)


class Family(NamedTuple):
    """Drafters that share a base, and their additions to it."""

    members: slice
    base: FrozenLinear
    low: StackedLowRank | None


class StackedLinear:
    """One projection of N drafters."""

    def __init__(self, linears: Sequence[FrozenLinear | AdaptedLinear]) -> None:
        """linears: those that share a base are adjacent."""
        self.linears, self.families, start = list(linears), [], 0
        for _, group in groupby(linears, key=lambda linear: id(base_of(linear))):
            members = list(group)
            part = slice(start, start + len(members))
            adapted = any(isinstance(linear, AdaptedLinear) for linear in members)
            self.families.append(Family(part, base_of(members[0]), StackedLowRank(members) if adapted else None))
            start = part.stop

    @cached_property
    def weights(self) -> Tensor:
        """A copy of the weights of all families, [F, out, in]; graphs captured earlier read the families' own."""
        return torch.stack([family.base.weight for family in self.families])

    @cached_property
    def family_of(self) -> Tensor:
        """The family of each drafter, [N]."""
        sizes = [family.members.stop - family.members.start for family in self.families]
        numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
        return torch.tensor(numbers, device=self.families[0].base.weight.device)

    @cached_property
    def low(self) -> StackedLowRank | None:
        """The additions of all drafters, zero where a drafter has none; None: no drafter has any."""
        lows = [family.low for family in self.families]
        if len(lows) == 1 or not any(lows):
            return lows[0]
        return StackedLowRank(self.linears)

    @cached_property
    def native(self) -> Packed | None:
        """The projection of all drafters, whose rows follow each other; None: it is not packed, or not of one base."""
        if len(self.linears) == 1:
            return self.linears[0].native
        (_, base, low), *further = self.families
        if further:
            return None
        return base.native if low is None else pack_additions(base, low.down, low.up)

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


class StackedDrafters(DecodingPass):
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
        self.same_vocabulary = all(member.token_ids is members[0].token_ids for member in members)
        self.rope, self.kernels = members[0].rope, members[0].kernels

    @cached_property
    def draft_ids(self) -> Tensor:
        """See `draft_id_table`."""
        return draft_id_table(self.token_ids, self.embedding.shape[0])

    @cached_property
    def packed(self) -> PackedDraftLayer | None:
        """The layer and the head of all drafters in one call, for tokens [N * B, T]; None unless they share a base."""
        shared = all(gain.dim() == 1 for name, gain in self.gains.items() if name != "fc_norm")
        native = all(linear.native is not None for name, linear in self.linears.items() if name != "fc")
        return self._pack() if shared and native else None

    def _gain(self, name: str) -> Tensor:
        gains = [member.gains[name] for member in self.members]
        alike = all(gain is gains[0] for gain in gains)
        return gains[0] if alike else torch.stack(gains)[:, None]


def signature(drafter: FusedDrafter) -> tuple:
    """Shapes and constants that must be equal for drafters to stack."""
    spec = drafter.spec
    shapes = tuple(base_of(linear).weight.shape for linear in drafter.linears.values())
    constants = spec.num_heads, spec.head_dim, spec.rms_norm_eps, str(spec.rope_parameters)
    return shapes, *constants, *(getattr(spec, flag) for flag in FLAGS), drafter.embedding.dtype
