"""Which cache slots drafted nodes may read.

Axes: B rows, K nodes, L level slots, S slots before them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.kernels.dispatch import KERNELS


def level_mask(reads: Tensor, lengths: Tensor, base: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [B, K, S + L], S = base: each row's own text, then `reads` [B, K, L].

    lengths: [B] slots of each row's text; slots between the text and `base` are masked.
    """
    return KERNELS[reads.device.type, dtype].tree_mask(reads, lengths, base, dtype)
