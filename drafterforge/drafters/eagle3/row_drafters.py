"""One of N stacked drafters for each row, chosen by an index on the device: another choice captures no graph anew.

LoRA experts of one generalist share its weights, and no addition is copied; of drafters with weights of
their own, the chosen weights are gathered once a cycle.
Axes: N drafters, F families (drafters with their own weights), B rows, K beam nodes, H hidden, r rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from drafterforge.drafters.eagle3.forward import DecodingPass
from drafterforge.drafters.eagle3.stacked import StackedDrafters, StackedLinear


class RowDrafters(DecodingPass):
    """Processes [B * K, ...] tokens, each row's with its chosen drafter."""

    def __init__(self, drafters: StackedDrafters, choice: Tensor) -> None:
        """choice: index of each row's drafter, [B]."""
        self.spec, self.embedding = drafters.spec, drafters.embedding
        self.rope, self.kernels, self.batch = drafters.rope, drafters.kernels, choice.shape[0]
        self.linears = {
            name: row_projection(linear, choice) for name, linear in drafters.linears.items() if name != "fc"
        }
        self.gains = {
            name: gain if gain.dim() == 1 else gain[choice]
            for name, gain in drafters.gains.items()
            if name != "fc_norm"
        }
        self.token_ids = drafters.token_ids[0] if drafters.same_vocabulary else drafters.token_ids[choice]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        gain = self.gains[name]
        if gain.dim() == 1:
            return super()._norm(x, name)
        return self.kernels.rms_norm(x.unflatten(0, (self.batch, -1)), gain, self.spec.rms_norm_eps).flatten(0, 1)


def row_projection(linear: StackedLinear, choice: Tensor) -> Callable[[Tensor], Tensor]:
    """The projection [B * K, in] to [B * K, out] of each row's drafter.  choice: [B]."""
    batch, weight, low = choice.shape[0], None, linear.low
    if len(linear.families) > 1:
        weight = linear.weights[linear.family_of[choice]].transpose(1, 2)  # [B, in, out]

    def project(x: Tensor) -> Tensor:
        if weight is None:
            out = linear.families[0].base(x)
        else:
            out = torch.bmm(x.unflatten(0, (batch, -1)), weight).flatten(0, 1)
        if low is None:
            return out
        return low.add_by_row(out, x, choice[:, None].expand(-1, len(x) // batch).flatten())

    return project
