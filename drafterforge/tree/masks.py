"""Which cache slots drafted nodes may read.

Axes: B rows, K nodes, L level slots, S slots before them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.kernels.dispatch import KERNELS
from drafterforge.kernels.masks import Mask


def level_mask(reads: Tensor, lengths: Tensor, base: int, dtype: torch.dtype) -> Mask:
    """Mask [B, K, S + L], S = base: each row's own text, then `reads` [B, K, L].

    It is additive on a CPU; on a GPU it is lengths and bits, which kernels read as they are.
    lengths: [B] slots of each row's text; slots between the text and `base` are masked.
    """
    return KERNELS[reads.device.type, dtype].tree_mask(reads, lengths, base, dtype)


def text_mask(lengths: Tensor, used: int, dtype: torch.dtype) -> Mask:
    """Mask [B, 1, S], S = used, of one query per row, which reads the first lengths [B] slots."""
    return level_mask(torch.empty(len(lengths), 1, 0, dtype=torch.bool, device=lengths.device), lengths, used, dtype)
