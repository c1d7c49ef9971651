"""Which cache slots drafted nodes may read.

Axes: B rows, K nodes, L level slots, S slots before them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.kernels import native, native_trees
from drafterforge.kernels.attention import additive


def past_and(reads: Tensor, lengths: Tensor, base: int) -> Tensor:
    """`reads` [B, K, L] behind each row's own text: [B, K, S + L], S = base.

    lengths: [B, 1] slots of each row's text; slots between them and `base` are not read.
    """
    past = torch.arange(base, device=reads.device) < lengths
    return torch.cat((past[:, None].expand(-1, reads.shape[1], -1), reads), dim=2)


def level_mask(reads: Tensor, lengths: Tensor, base: int, dtype: torch.dtype) -> Tensor:
    """`past_and` as an additive mask, [B, K, S + L]; lengths: [B]."""
    if dtype == torch.float32 and reads.device.type == "cpu" and native.library() is not None:
        return native_trees.mask(reads.contiguous(), lengths.contiguous(), base)
    return additive(past_and(reads, lengths[:, None], base), dtype)
