"""Grouped-query attention: the queries that share a key head are folded into one row axis.

Axes: B batch, T queries, S keys, Hq query heads, Hk key heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.rope import apply_rope, beside_values

# attend(layer index, its qkv [B * T, heads, D]) -> [B * T, Hq * D]
AttendLayer = Callable[[int, Tensor], Tensor]
# write(layer index, its qkv) -> rotated queries [B, T, Hq, D], and the keys and values to read, [B, Hk, S, D] each
WriteLayer = Callable[[int, Tensor], tuple[Tensor, Tensor, Tensor]]


class Heads(NamedTuple):
    """Numbers of heads of an attention layer, and their width."""

    queries: int
    keys: int
    width: int


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, exact: bool = False) -> Tensor:
    """softmax(q k^T / sqrt(D) + mask) v, [B, T, Hq, D].

    q: [B, T, Hq, D].  k, v: [B, Hk, S, D].  mask: additive, [B or 1, T, S], or None for causal with T == S.
    exact: see `folded_attention`.
    """
    group = q.shape[2] // k.shape[1]
    if mask is None and q.shape[1] > 1:
        if exact:
            return grouped_attention(q.double(), k.double(), v.double(), None).to(q.dtype)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True, enable_gqa=group > 1)
        return out.transpose(1, 2)
    return folded_attention(q, k, v, None if mask is None else fold_mask(mask, group), exact)


def fold_mask(mask: Tensor, group: int) -> Tensor:
    """Additive mask [B, T, S] for `group` queries per key head, [B, 1, G*T, S]; computed once for all layers."""
    batch, count, slots = mask.shape
    return mask[:, None, None].expand(-1, 1, group, -1, -1).reshape(batch, 1, group * count, slots)


def folded_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, exact: bool = False) -> Tensor:
    """As `grouped_attention`, with a mask from `fold_mask`; None: every query reads every key.

    exact: sum in float64, where products of half-precision numbers are exact up to errors that rounding the result
    hides, so masked keys, the order of keys and other queries do not change it.
    """
    dtype = q.dtype
    if exact:
        q, k, v, mask = q.double(), k.double(), v.double(), None if mask is None else mask.double()
    batch, num_queries, num_heads, width = q.shape
    num_keys = k.shape[1]
    group = num_heads // num_keys
    if num_queries == 1:
        out = F.scaled_dot_product_attention(q.view(batch, num_keys, group, width), k, v, attn_mask=mask)
        return out.reshape(batch, 1, num_heads, width).to(dtype)
    # [B, T, Hk, G, D] -> [B, Hk, G*T, D]: no copy of k and v per group
    folded = q.view(batch, num_queries, num_keys, group, width).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, num_keys, group * num_queries, width)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask)
    out = out.view(batch, num_keys, group, num_queries, width).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, num_queries, num_heads, width).to(dtype)


def rotated_attention(
    cos: Tensor,
    sin: Tensor,
    shape: tuple[int, int],
    heads: Heads,
    cache: KeyValueCache | None,
    mask: Tensor | None,
    exact: bool = False,
) -> AttendLayer:
    """Attention of all layers of a pass, which rotates queries and keys, and writes the cache.

    cos, sin: of the B * T positions, from `RopeTable`.  shape: B and T.  cache: None: attend within the tokens.
    mask, exact: see `grouped_attention`.
    """
    batch, length = shape
    write = rotary_writer(cos, sin, shape, heads, cache)
    folded = None if mask is None else fold_mask(mask, heads.queries // heads.keys)

    def attend(index: int, qkv: Tensor) -> Tensor:
        q, keys, values = write(index, qkv)
        if folded is None and length > 1:
            attended = grouped_attention(q, keys, values, None, exact)
        else:
            attended = folded_attention(q, keys, values, folded, exact)
        return attended.reshape(batch * length, -1)

    return attend


def rotary_writer(
    cos: Tensor, sin: Tensor, shape: tuple[int, int], heads: Heads, cache: KeyValueCache | None
) -> WriteLayer:
    """Rotates queries and keys, and writes the cache, for all layers; arguments as for `rotated_attention`."""
    batch, length = shape
    # the rotation leaves values unchanged, so keys and values stay side by side for the cache
    rotation = beside_values(cos, sin, heads.queries + heads.keys, heads.keys)

    def write(index: int, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = apply_rope(qkv, *rotation).view(batch, length, -1, heads.width)
        q = qkv[:, :, : heads.queries]
        keys_values = qkv[:, :, heads.queries :].unflatten(2, (2, heads.keys))
        if cache is None:
            keys, values = keys_values.permute(2, 0, 3, 1, 4)
        else:
            keys, values = cache.write_both(index, keys_values)
        return q, keys, values

    return write


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask of a boolean one (True: may be read)."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
