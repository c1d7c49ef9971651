"""The bits of a tree mask, packed by one Triton kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from drafterforge.kernels.masks import WORD

ROWS = 16  # of one program


def pack_reads(reads: Tensor) -> Tensor:
    """See `masks.pack_reads`."""
    reads = reads.contiguous()
    count = reads.shape[-1]
    words = triton.cdiv(count, WORD)
    bits = torch.empty(*reads.shape[:-1], words, dtype=torch.long, device=reads.device)
    if bits.numel():
        num_rows = bits.numel() // words
        _pack[triton.cdiv(num_rows, ROWS), words](
            reads.view(torch.uint8), bits, num_rows, count, words, ROWS=ROWS, WORD=WORD
        )
    return bits


@triton.jit(do_not_specialize=["num_rows", "count", "words"])
def _pack(reads, bits, num_rows, count, words, ROWS: tl.constexpr, WORD: tl.constexpr):
    """One word of ROWS rows; programs: [blocks of rows, words]."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(1)
    shifts = tl.arange(0, WORD)
    slots = word * WORD + shifts
    inside = (rows < num_rows)[:, None] & (slots < count)[None, :]
    read = tl.load(reads + rows.to(tl.int64)[:, None] * count + slots[None, :], mask=inside, other=0)
    packed = tl.sum(read.to(tl.int64) << shifts.to(tl.int64)[None, :], axis=1)
    tl.store(bits + rows.to(tl.int64) * words + word, packed, mask=rows < num_rows)
