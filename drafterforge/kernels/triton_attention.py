"""Attention of drafted trees over a cache, in Triton: the ancestor mask travels as bits, unread slots are skipped.

Each program attends for some queries of one key head over a part of the slots, with a running softmax in float32; a
second kernel combines the parts.  The number of parts depends on shapes only, and each row divides its own slots by it,
so a captured graph stays valid while texts grow.  Kernels are not specialised for sizes that change between cycles, as
that would compile them again.
Axes: B batch, T queries, G query heads of one key head, Hq = G * Hk query heads, D head width, S slots, L tree slots,
P parts, M = T * G queries of a key head.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from drafterforge.kernels.triton_support import block_size, num_parts, operand_type

MAX_PARTS = 64


def tree_attention(q: Tensor, k: Tensor, v: Tensor, bits: Tensor, lengths: Tensor, base: int) -> Tensor:
    """Attention over each row's first lengths [B] slots, and the slots after `base` whose bits are set, [B, T, Hq, D].

    q: [B, T, Hq, D].  k, v: [B, Hk, S, D], S = base + L.  bits: [B, T, W], see `masks.pack_reads`.  A query that reads
    nothing gets zeros.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    batch, count, heads, width = q.shape
    num_keys, num_slots = k.shape[1:3]
    queries = count * heads // num_keys
    # a block lies within one word of bits; float32 has no tensor cores, and takes twice the memory
    rows, slots = (block_size(queries, 16, 32), 32) if q.dtype == torch.float32 else (block_size(queries, 16, 64), 64)
    blocks = triton.cdiv(queries, rows)
    most = min(MAX_PARTS, triton.cdiv(num_slots, slots))
    parts = num_parts(batch * num_keys * blocks, most, q.device)
    out = torch.empty(batch, count, heads, width, dtype=q.dtype, device=q.device)
    sums, peaks, totals = out, out, out  # not used by a single part
    if parts > 1:
        sums = torch.empty(batch * num_keys, parts, queries, width, dtype=torch.float32, device=q.device)
        peaks, totals = torch.empty(2, batch * num_keys, parts, queries, dtype=torch.float32, device=q.device)
    widths = {"WIDTH": width, "BLOCK_WIDTH": block_size(width, 16, 1024)}
    _attend[blocks, parts, batch * num_keys](
        q,
        k,
        v,
        bits.contiguous(),
        lengths.contiguous(),
        sums,
        peaks,
        totals,
        math.log2(math.e) / math.sqrt(width),
        base,
        num_slots - base,
        count,
        num_keys,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        GROUP=heads // num_keys,
        ROWS=rows,
        SLOTS=slots,
        HAS_PARTS=parts > 1,
        OPERAND=operand_type(q.dtype),
        **widths,
        num_warps=4,
        num_stages=2,
    )
    if parts > 1:
        _combine[(batch * count * heads,)](
            sums,
            peaks,
            totals,
            out,
            parts,
            count,
            num_keys,
            GROUP=heads // num_keys,
            PARTS=block_size(parts, 1, 64),
            **widths,
        )
    return out


@triton.jit
def _attend_block(
    queries,
    k,
    v,
    k_slot,
    v_slot,
    slots,
    inside,
    allowed,
    dims,
    scale,
    peak,
    total,
    sums,
    WIDTH: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """The running softmax after a block of slots: largest score, sum of weights and weighted values of each query."""
    slots = slots.to(tl.int64)
    in_width = dims < WIDTH
    keys = tl.load(k + dims[:, None] + slots[None, :] * k_slot, mask=in_width[:, None] & inside[None, :], other=0.0)
    scores = tl.dot(queries, keys.to(OPERAND), input_precision="ieee") * scale
    scores = tl.where(allowed, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # -inf less -inf would be NaN
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(peak - shift)
    values = tl.load(v + slots[:, None] * v_slot + dims[None, :], mask=inside[:, None] & in_width[None, :], other=0.0)
    mixed = tl.dot(weights.to(OPERAND), values.to(OPERAND), input_precision="ieee")
    return new_peak, total * decay + tl.sum(weights, axis=1), sums * decay[:, None] + mixed


@triton.jit(do_not_specialize=["base", "num_reads", "count"])
def _attend(
    q,
    k,
    v,
    bits,
    lengths,
    sums_out,
    peaks_out,
    totals_out,
    scale,
    base,
    num_reads,
    count,
    num_keys,
    q_row,
    q_token,
    q_head,
    k_row,
    k_head,
    k_slot,
    v_row,
    v_head,
    v_slot,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    HAS_PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """ROWS queries of one key head over one part of the slots; programs: [blocks of queries, parts, B * Hk]."""
    part, num_parts = tl.program_id(1), tl.num_programs(1)
    pair = tl.program_id(2).to(tl.int64)
    row, key_head = pair // num_keys, pair % num_keys
    queries = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    num_queries = count * GROUP
    in_block = queries < num_queries
    token, head = queries // GROUP, key_head * GROUP + queries % GROUP
    dims = tl.arange(0, BLOCK_WIDTH)
    address = row * q_row + token * q_token + head * q_head
    in_q = in_block[:, None] & (dims < WIDTH)[None, :]
    states = tl.load(q + address[:, None] + dims[None, :], mask=in_q, other=0.0).to(OPERAND)
    k += row * k_row + key_head * k_head
    v += row * v_row + key_head * v_head

    length = tl.load(lengths + row).to(tl.int32)
    text_blocks, tree_blocks = tl.cdiv(length, SLOTS), tl.cdiv(num_reads, SLOTS)
    per_part = tl.cdiv(text_blocks + tree_blocks, num_parts)
    first = part * per_part
    last = tl.minimum(first + per_part, text_blocks + tree_blocks)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, BLOCK_WIDTH], tl.float32)
    for block in range(first, tl.minimum(last, text_blocks)):
        slots = block * SLOTS + tl.arange(0, SLOTS)
        inside = slots < length
        peak, total, sums = _attend_block(
            states, k, v, k_slot, v_slot, slots, inside, inside[None, :], dims, scale, peak, total, sums, WIDTH, OPERAND
        )
    num_words = tl.cdiv(num_reads, 64)
    for block in range(tl.maximum(first, text_blocks), last):
        nodes = (block - text_blocks) * SLOTS + tl.arange(0, SLOTS)
        inside = nodes < num_reads
        word = (block - text_blocks) * SLOTS // 64
        words = tl.load(bits + (row * count + token) * num_words + word, mask=in_block, other=0)
        allowed = ((words[:, None] >> (nodes % 64).to(tl.int64)[None, :]) & 1) == 1
        slots = base + nodes
        peak, total, sums = _attend_block(
            states, k, v, k_slot, v_slot, slots, inside, allowed, dims, scale, peak, total, sums, WIDTH, OPERAND
        )
    if HAS_PARTS:
        line = (pair * num_parts + part) * num_queries + queries
        tl.store(peaks_out + line, peak, mask=in_block)
        tl.store(totals_out + line, total, mask=in_block)
        tl.store(sums_out + line[:, None] * WIDTH + dims[None, :], sums, mask=in_q)
    else:
        sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        line = (row * count + token) * (num_keys * GROUP) + head
        tl.store(sums_out + line[:, None] * WIDTH + dims[None, :], sums.to(sums_out.dtype.element_ty), mask=in_q)


@triton.jit(do_not_specialize=["num_parts", "count"])
def _combine(
    sums,
    peaks,
    totals,
    out,
    num_parts,
    count,
    num_keys,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """One query head of one token from its parts; programs: [B * T * Hq]."""
    line = tl.program_id(0).to(tl.int64)
    token, head = line // (num_keys * GROUP), line % (num_keys * GROUP)
    pair = token // count * num_keys + head // GROUP
    query = token % count * GROUP + head % GROUP
    parts, dims = tl.arange(0, PARTS), tl.arange(0, BLOCK_WIDTH)
    inside, in_width = parts < num_parts, dims < WIDTH
    source = (pair * num_parts + parts) * (count * GROUP) + query
    peak = tl.load(peaks + source, mask=inside, other=float("-inf"))
    highest = tl.max(peak, axis=0)
    weights = tl.exp2(peak - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weights * tl.load(totals + source, mask=inside, other=0.0), axis=0)
    in_part = inside[:, None] & in_width[None, :]
    values = tl.load(sums + source[:, None] * WIDTH + dims[None, :], mask=in_part, other=0.0)
    mixed = tl.sum(weights[:, None] * values, axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + line * WIDTH + dims, mixed.to(out.dtype.element_ty), mask=in_width)
