"""Low-rank additions of several experts to one projection, in torch.

Axes: N experts, R rows, I inputs, O outputs, r rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def add_low_rank(out: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """out + x @ down.T @ up of every expert, [N, R, O].

    out: [N or 1, R, O] or shared [R, O].  x: [N, R, I] or shared [R, I].  down: [N, r, I].  up: [N, r, O].
    """
    count = down.shape[0]
    if x.dim() == 2:
        low = F.linear(x, down.flatten(0, 1)).unflatten(1, (count, -1)).transpose(0, 1)
    else:
        low = torch.bmm(x, down.transpose(1, 2))
    return torch.baddbmm(out.expand(count, -1, -1), low, up)


def add_expert_low_rank(out: Tensor, x: Tensor, down: Tensor, up: Tensor, experts: Tensor) -> Tensor:
    """out + x @ down[e].T @ up[e] with the expert e of each row, [R, O].

    out: [R, O].  x: [R, I].  down: [N, r, I].  up: [N, r, O].  experts: [R] int64, each below N.
    No weight is copied: every expert projects every row down, and all but the row's own are set to zero.
    """
    low = F.linear(x, down.flatten(0, 1)).unflatten(1, down.shape[:2])
    is_expert = experts[:, None] == torch.arange(down.shape[0], device=experts.device)
    return torch.addmm(out, low.masked_fill(~is_expert[:, :, None], 0.0).flatten(1), up.flatten(0, 1))
