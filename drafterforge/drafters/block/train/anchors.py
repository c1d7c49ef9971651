"""Blocks of a packed batch: which roots are drafted from, and the attention of their tokens.

A root, or anchor, is an answer token whose next token belongs to the same answer.  The tokens of its block read the
context before it and each other: the attention of EAGLE-3's training, a causal prefix and a few keys of the row's own.
Axes: N positions of a packed batch, M anchors, Q tokens of a block, I = Q - 1 drafted positions, P teacher positions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.eagle3.train.attention import Span, query_blocks, ttt_attention
from drafterforge.drafters.eagle3.train.ttt import Layout, PackedBatch, lay_out


def lay_out_anchors(batch: PackedBatch, steps: int, per_sequence: int | None, seed: int) -> Layout:
    """The anchors of a batch and the teacher positions that their blocks predict from, on the host.

    Row m of the layout is the position before anchor m, the last one of its context.  per_sequence: most anchors of
    a sequence, drawn at random; None: all.
    """
    layout = lay_out(replace(batch, tokens=batch.loss_mask), steps)  # a layout lies where the tokens are
    if per_sequence is None:
        return layout
    rows, count = layout.rows, layout.rows.numel()
    ends = torch.tensor(batch.lengths).cumsum(0)
    sequence = torch.searchsorted(ends, rows, right=True)
    order = torch.rand(count, generator=torch.Generator().manual_seed(seed)).argsort()
    order = order[sequence[order].argsort(stable=True)]  # sequence by sequence, in random order
    first = torch.searchsorted(sequence[order], sequence[order])
    drawn = order[torch.arange(count) - first < per_sequence].sort().values
    number = torch.full((count + 1,), -1)
    number[drawn] = torch.arange(drawn.numel())
    slots = number[layout.slots]  # the last entry is for -1
    used = (slots >= 0).any(dim=0)
    return replace(layout, rows=rows[drawn], teacher_positions=layout.teacher_positions[used], slots=slots[:, used])


def draft_blocks(drafter: BlockDrafter, batch: PackedBatch, rows: Tensor) -> Tensor:
    """Normed outputs of all mask tokens, [I, M, H].

    rows: positions before the anchors, ascending, on the host, [M].
    """
    size, reach = drafter.spec.block_size, rows.repeat_interleave(drafter.spec.block_size)
    blocks = list(query_blocks(token_spans(rows, batch.lengths, size), reach.tolist()))
    rows, reach = rows.to(batch.tokens.device), reach.to(batch.tokens.device)
    tokens = drafter.block_tokens(batch.tokens[rows + 1])
    positions = batch.positions[rows + 1][:, None] + torch.arange(size, device=rows.device)
    context = drafter.context(batch.features)
    rope = drafter.rotary(batch.positions, context.dtype)
    keys = [layer.self_attn.keys(context, rope) for layer in drafter.layers]

    def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        of_block = (part.unflatten(0, tokens.shape).transpose(0, 1).repeat_interleave(size, dim=1) for part in (k, v))
        return ttt_attention(q, *keys[number], *of_block, reach, blocks)

    outputs = drafter(tokens.flatten(), positions.flatten(), context.dtype, attend)
    return outputs.unflatten(0, tokens.shape)[:, 1:].transpose(0, 1)


def token_spans(rows: Tensor, lengths: list[int], block_size: int) -> list[Span]:
    """The block tokens of each sequence.  rows: positions before the anchors, ascending, on the host, [M]."""
    ends = torch.tensor(lengths).cumsum(0)
    last = (torch.searchsorted(rows, ends) * block_size).tolist()
    starts = zip([0, *last], last, [0, *ends.tolist()], strict=False)
    return [Span(first, last, slot) for first, last, slot in starts if last > first]
