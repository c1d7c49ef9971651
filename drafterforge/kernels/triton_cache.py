"""Rotary embedding and the cache write of a layer in one Triton kernel.

Axes: B batch, T tokens, Hq query heads, Hk key heads, D head width, S slots.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from drafterforge.kernels.attention import Heads
from drafterforge.kernels.triton_support import block_size

HEADS = 8  # of one program


def rotate_and_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, stored: Tensor, slots: Tensor | None, start: int, heads: Heads
) -> Tensor:
    """Rotated queries [B * T, Hq, D]; writes rotated keys, and values, to `stored` [2, B, Hk, S, D].

    qkv: [B * T, Hq + 2 Hk, D].  cos, sin: [B * T, D / 2].  slots: [B, T]; None: from `start` on in every row.
    """
    qkv, cos, sin = (x if x.stride(-1) == 1 else x.contiguous() for x in (qkv, cos, sin))
    num_tokens, num_heads, width = qkv.shape
    if stored.stride(-1) != 1:
        raise ValueError(f"wanted a cache whose last axis is contiguous, got strides {stored.stride()}")
    q = torch.empty(num_tokens, heads.queries, width, dtype=qkv.dtype, device=qkv.device)
    _rotate_and_write[num_tokens, triton.cdiv(num_heads, HEADS)](
        qkv,
        cos,
        sin,
        q if slots is None else slots.contiguous(),
        q,
        stored,
        num_tokens // stored.shape[1],
        start,
        *qkv.stride()[:2],
        cos.stride(0),
        sin.stride(0),
        *stored.stride()[:4],
        NUM_QUERIES=heads.queries,
        NUM_KEYS=heads.keys,
        HALF=width // 2,
        BLOCK_HALF=block_size(width // 2, 1, 1024),
        HEADS=HEADS,
        HAS_SLOTS=slots is not None,
    )
    return q


@triton.jit(do_not_specialize=["count", "start"])
def _rotate_and_write(
    qkv,
    cos,
    sin,
    slots,
    q,
    stored,
    count,
    start,
    qkv_token,
    qkv_head,
    cos_token,
    sin_token,
    stored_kind,
    stored_row,
    stored_head,
    stored_slot,
    NUM_QUERIES: tl.constexpr,
    NUM_KEYS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HEADS: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
):
    """HEADS heads of one token; programs: [B * T, blocks of heads]."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, BLOCK_HALF)
    inside = (heads < NUM_QUERIES + 2 * NUM_KEYS)[:, None] & (dims < HALF)[None, :]
    source = qkv + token * qkv_token + heads[:, None] * qkv_head + dims[None, :]
    left = tl.load(source, mask=inside, other=0.0)
    right = tl.load(source + HALF, mask=inside, other=0.0)
    cosine = tl.load(cos + token * cos_token + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(sin + token * sin_token + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    # `rope.apply_rope` rounds the first products to the dtype, too
    dtype = qkv.dtype.element_ty
    wide_left, wide_right = left.to(tl.float32), right.to(tl.float32)
    new_left = (wide_left * cosine).to(dtype).to(tl.float32) - wide_right * sine
    new_right = (wide_right * cosine).to(dtype).to(tl.float32) + wide_left * sine
    is_rotated = (heads < NUM_QUERIES + NUM_KEYS)[:, None]
    new_left = tl.where(is_rotated, new_left.to(dtype), left)
    new_right = tl.where(is_rotated, new_right.to(dtype), right)

    is_query = (heads < NUM_QUERIES)[:, None]
    query = q + (token * NUM_QUERIES + heads)[:, None] * (2 * HALF) + dims[None, :]
    tl.store(query, new_left, mask=inside & is_query)
    tl.store(query + HALF, new_right, mask=inside & is_query)
    row = token // count
    slot = tl.load(slots + token) if HAS_SLOTS else start + token % count
    kind = (heads >= NUM_QUERIES + NUM_KEYS).to(tl.int64)
    key_head = heads - NUM_QUERIES - kind * NUM_KEYS
    address = kind * stored_kind + row * stored_row + key_head * stored_head + slot * stored_slot
    target = stored + address[:, None] + dims[None, :]
    is_stored = inside & (heads >= NUM_QUERIES)[:, None]
    tl.store(target, new_left, mask=is_stored)
    tl.store(target + HALF, new_right, mask=is_stored)
