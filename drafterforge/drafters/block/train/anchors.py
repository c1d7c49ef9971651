"""Blocks of a packed batch: which roots are drafted from, and the attention of their tokens.

A root, or anchor, is an answer token whose next token belongs to the same answer.
Axes: N positions of a packed batch, M anchors, Q tokens of a block, I = Q - 1 drafted positions, P teacher positions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.eagle3.train.ttt import Layout, PackedBatch, lay_out

CHUNK = 128  # anchors that attend together


def lay_out_anchors(batch: PackedBatch, steps: int, per_answer: int | None, seed: int) -> Layout:
    """The anchors of a batch and the teacher positions that their blocks predict from, on the host.

    Row m of the layout is the position before anchor m, the last one of its context.  per_answer: most anchors of a
    sequence, drawn at random; None: all.
    """
    layout = lay_out(replace(batch, tokens=batch.loss_mask), steps)  # a layout lies where the tokens are
    if per_answer is None:
        return layout
    rows, count = layout.rows, layout.rows.numel()
    ends = torch.tensor(batch.lengths).cumsum(0)
    sequence = torch.searchsorted(ends, rows, right=True)
    order = torch.rand(count, generator=torch.Generator().manual_seed(seed)).argsort()
    order = order[sequence[order].argsort(stable=True)]  # sequence by sequence, in random order
    first = torch.searchsorted(sequence[order], sequence[order])
    drawn = order[torch.arange(count) - first < per_answer].sort().values
    number = torch.full((count + 1,), -1)
    number[drawn] = torch.arange(drawn.numel())
    slots = number[layout.slots]  # the last entry is for -1
    used = (slots >= 0).any(dim=0)
    return replace(layout, rows=rows[drawn], teacher_positions=layout.teacher_positions[used], slots=slots[:, used])


def draft_blocks(drafter: BlockDrafter, batch: PackedBatch, rows: Tensor, recompute: bool = False) -> Tensor:
    """Normed outputs of all mask tokens, [I, M, H].

    rows: positions before the anchors, ascending, on the host, [M].  recompute: checkpoint the blocks' pass.
    """
    spans, rows = anchor_spans(rows, batch.lengths), rows.to(batch.tokens.device)
    spans = [(*span, rows[span[0] : span[1]] - span[2]) for span in spans]
    spec, tokens = drafter.spec, drafter.block_tokens(batch.tokens[rows + 1])
    positions = batch.positions[rows + 1][:, None] + torch.arange(spec.block_size, device=rows.device)

    def run(features: Tensor) -> Tensor:
        context = drafter.context(features)
        rope = drafter.rotary(batch.positions, context.dtype)
        keys = [layer.self_attn.keys(context, rope) for layer in drafter.layers]

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (part.unflatten(0, tokens.shape) for part in (q, k, v))
            mixed = [
                anchored_attention(
                    q[first:last], k[first:last], v[first:last], *(part[begin:end] for part in keys[number]), reach
                )
                for first, last, begin, end, reach in spans
            ]
            return torch.cat(mixed).flatten(0, 1)

        return drafter(tokens.flatten(), positions.flatten(), attend)

    outputs = checkpoint(run, batch.features, use_reentrant=False) if recompute else run(batch.features)
    return outputs.unflatten(0, tokens.shape)[:, 1:].transpose(0, 1)


def anchor_spans(rows: Tensor, lengths: list[int]) -> list[tuple[int, int, int, int]]:
    """Chunks of anchors of one sequence: first and last anchor, and the positions that they may read.

    rows: positions before the anchors, on the host, [M].
    """
    spans, begin = [], 0
    for length in lengths:
        first, last = (int(torch.searchsorted(rows, at)) for at in (begin, begin + length))
        for start in range(first, last, CHUNK):
            stop = min(start + CHUNK, last)
            spans.append((start, stop, begin, int(rows[stop - 1]) + 1))
        begin += length
    return spans


def anchored_attention(q: Tensor, k: Tensor, v: Tensor, context_k: Tensor, context_v: Tensor, reach: Tensor) -> Tensor:
    """Attention of blocks to their context and to themselves, [M, Q, heads, D].

    q: [M, Q, heads, D].  k, v: [M, Q, key heads, D].  context_k, context_v: [S, key heads, D].  reach: the last context
    position of each block, [M].
    """
    blocks, size, heads, width = q.shape
    q = q.unflatten(2, (k.shape[2], -1)) * width**-0.5
    before = torch.einsum("mqhgd,shd->mhgqs", q, context_k)
    beyond = torch.arange(len(context_k), device=q.device) > reach[:, None]
    before = before.masked_fill(beyond[:, None, None, None], -torch.inf)
    within = torch.einsum("mqhgd,mkhd->mhgqk", q, k)
    weights = torch.cat((before, within), dim=-1).softmax(dim=-1, dtype=torch.float32).to(v.dtype)
    before, within = weights.split((len(context_k), size), dim=-1)
    mixed = torch.einsum("mhgqs,shd->mqhgd", before, context_v) + torch.einsum("mhgqk,mkhd->mqhgd", within, v)
    return mixed.reshape(blocks, size, heads, width)
