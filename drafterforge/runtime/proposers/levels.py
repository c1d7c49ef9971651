"""Which cache slots drafted nodes may read.

Axes: B rows, K nodes, L level slots, S slots before them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def past_and(reads: Tensor, lengths: Tensor, base: int) -> Tensor:
    """`reads` [B, K, L] behind each row's own text: [B, K, S + L], S = base.

    lengths: [B, 1] slots of each row's text; slots between them and `base` belong to longer rows.
    """
    batch, count, _ = reads.shape
    if batch == 1:
        past = torch.ones(1, count, base, dtype=torch.bool, device=reads.device)
    else:
        past = (torch.arange(base, device=reads.device) < lengths)[:, None].expand(-1, count, -1)
    return torch.cat((past, reads), dim=2)
