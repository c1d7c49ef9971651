"""The mask of drafted trees as lengths and bits, which become floats only where torch attends.

Axes: B rows, T queries, L slots of the tree, S slots in total, W words of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.kernels import trees
from drafterforge.kernels.attention import fold_mask

WORD = 64  # bits


def pack_reads(reads: Tensor) -> Tensor:
    """Bits of reads [..., L] bool, [..., W] int64: bit j % 64 of word j // 64 is slot j."""
    words = -(-reads.shape[-1] // WORD)
    padded = F.pad(reads, (0, words * WORD - reads.shape[-1])).view(*reads.shape[:-1], words, WORD)
    # different bits never carry, so their sum is their union; bit 63 is the sign
    return (padded.long() << torch.arange(WORD, device=reads.device)).sum(dim=-1)


class TreeMask:
    """Each query reads the first lengths [B] slots of its row, and after `base` those of reads [B, T, L].

    Slots between a row's text and `base` are not read.
    """

    def __init__(self, reads: Tensor, lengths: Tensor, base: int, dtype: torch.dtype) -> None:
        """dtype: of the additive mask."""
        self.reads, self.lengths, self.base, self.dtype = reads, lengths, base, dtype
        self._bits: Tensor | None = None
        self._folded: dict[int, Tensor] = {}

    def bits(self, pack: Callable[[Tensor], Tensor] = pack_reads) -> Tensor:
        """`reads` as words, [B, T, W] int64, packed once for all layers."""
        if self._bits is None:
            self._bits = pack(self.reads)
        return self._bits

    @cached_property
    def additive(self) -> Tensor:
        """The additive mask, [B, T, base + L]."""
        return trees.tree_mask(self.reads, self.lengths, self.base, self.dtype)

    def folded(self, group: int) -> Tensor:
        """The additive mask for `group` queries per key head, see `fold_mask`; computed once for all layers."""
        if group not in self._folded:
            self._folded[group] = fold_mask(self.additive, group)
        return self._folded[group]


Mask = Tensor | TreeMask  # a tensor is additive


def additive_mask(mask: Mask | None) -> Tensor | None:
    """The mask as floats."""
    return mask.additive if isinstance(mask, TreeMask) else mask
