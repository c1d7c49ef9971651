"""Attention with grouped keys: the queries that share a key head are folded into one row axis.

Axes: B batch, T queries, S keys, Hq query heads, Hk key heads, D head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, exact: bool = False) -> Tensor:
    """softmax(q k^T / sqrt(D) + mask) v, [B, T, Hq, D].

    q: [B, T, Hq, D].  k, v: [B, Hk, S, D].  mask: additive, [B or 1, T, S], or None for causal with T == S.
    exact: sum in float64, where products of half-precision numbers lose nothing that a rounded result could show; so
    neither masked keys, nor the order of the others, nor other queries change it.
    """
    dtype = q.dtype
    if exact:
        q, k, v, mask = q.double(), k.double(), v.double(), None if mask is None else mask.double()
    batch, num_queries, num_heads, width = q.shape
    num_keys = k.shape[1]
    group = num_heads // num_keys
    if mask is None and num_queries > 1:
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True, enable_gqa=group > 1)
        return out.transpose(1, 2).to(dtype)
    # [B, T, Hk, G, D] -> [B, Hk, G*T, D]: no copy of k and v per group
    folded = q.view(batch, num_queries, num_keys, group, width).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, num_keys, group * num_queries, width)
    if mask is not None:
        mask = mask[:, None, None].expand(-1, 1, group, -1, -1).reshape(mask.shape[0], 1, group * num_queries, -1)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask)
    out = out.view(batch, num_keys, group, num_queries, width).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, num_queries, num_heads, width).to(dtype)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean mask (True: may be read) into an additive one of the same shape."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
