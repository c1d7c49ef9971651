"""The kernels of native.c with the names and arguments of their torch twins.

The twin computes what native.c cannot: gradients, an empty axis, a gain of several axes, many queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.config.runtime import MAX_NODES
from drafterforge.kernels import attention as by_torch
from drafterforge.kernels import gate, native, native_trees, norm, trees
from drafterforge.kernels.attention import AttendLayer, Heads, additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.native import MOST_QUERIES


def _needs_gradients(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """See `norm.rms_norm`."""
    if gain.dim() != 1 or gain.dtype != x.dtype or _needs_gradients(x):
        return norm.rms_norm(x, gain, eps)
    if x.dim() == 2 and x.stride(1) == 1:
        return native.rms_norm(x, gain, eps)
    return native.rms_norm(x.reshape(-1, x.shape[-1]), gain, eps).view(x.shape)


def swiglu(gate_up: Tensor) -> Tensor:
    """See `gate.swiglu`."""
    if not gate_up.is_contiguous() or _needs_gradients(gate_up):
        return gate.swiglu(gate_up)
    return native.swiglu(gate_up.view(-1, gate_up.shape[-1])).view(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, exact: bool = False) -> Tensor:
    """See `attention.grouped_attention`."""
    if _is_short(q.shape[1], q.shape[3], mask) and k.shape[2] and _is_cache_layout(k, v) and not _needs_gradients(q):
        return _attend(q, k, v, mask, k.shape[2])
    return by_torch.grouped_attention(q, k, v, mask, exact)


def rotated_attention(
    cos: Tensor,
    sin: Tensor,
    shape: tuple[int, int],
    heads: Heads,
    cache: KeyValueCache | None,
    mask: Tensor | None,
    exact: bool = False,
) -> AttendLayer:
    """See `attention.rotated_attention`."""
    batch, length = shape
    causal = mask is None and length > 1
    if heads.width % 2 or not (causal or (cache is not None and _is_short(length, heads.width, mask))):
        return by_torch.rotated_attention(cos, sin, shape, heads, cache, mask, exact)
    cos, sin = cos.flatten(1), sin[:, 0, 1].contiguous()  # [B*T, D/2] each
    slots = None if cache is None or cache.slots is None else cache.slots.reshape(-1).contiguous()
    text = torch.empty(2, batch, heads.keys, length, heads.width) if cache is None else None  # of one layer at a time
    start = 0 if cache is None else cache.start
    masks = _causal_masks(length) if causal else []

    def attend(index: int, qkv: Tensor) -> Tensor:
        stored = text if cache is None else cache.active[index]
        native.rotate_and_store(qkv, cos, sin, length, heads.queries, stored, slots, start)
        q = qkv.view(batch, length, -1, heads.width)[:, :, : heads.queries]
        if causal:
            return _attend_causally(q, *stored, masks).view(batch * length, -1)
        return _attend(q, stored[0], stored[1], mask, cache.used).view(batch * length, -1)

    return attend


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, used: int) -> Tensor:
    """See `native.attention`; in blocks of queries."""
    if mask is None or q.shape[1] <= MOST_QUERIES:
        return native.attention(q if q.stride(2) == q.shape[3] else q.contiguous(), k, v, mask, used)
    parts = zip(q.split(MOST_QUERIES, dim=1), mask.split(MOST_QUERIES, dim=1), strict=True)
    return torch.cat([native.attention(part.contiguous(), k, v, rows.contiguous(), used) for part, rows in parts], 1)


def _causal_masks(length: int) -> list[Tensor]:
    """Additive masks of each block of queries of a text, [1, block, keys up to its last query]."""
    token = torch.arange(length)  # `tril` would start torch's threads, which compete with ours for the cores
    return [additive(token[: part[-1] + 1] <= part[:, None], torch.float32)[None] for part in token.split(MOST_QUERIES)]


def _attend_causally(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor]) -> Tensor:
    """Attention within texts that begin at the first slot, with the masks of `_causal_masks`."""
    parts = [
        native.attention(part.contiguous(), k, v, mask, mask.shape[2])
        for part, mask in zip(q.split(MOST_QUERIES, dim=1), masks, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _is_short(length: int, width: int, mask: Tensor | None) -> bool:
    """Whether native.c attends for `length` queries of each sequence, of heads `width` wide.

    With a mask they may be the nodes of any tree, whose bits must be those of one query.
    """
    if mask is None:
        return length == 1 and width % 2 == 0
    return length <= MAX_NODES and width % 2 == 0 and mask.is_contiguous() and mask.dtype == torch.float32


def _is_cache_layout(k: Tensor, v: Tensor) -> bool:
    """Whether keys and values are the used slots of a preallocated cache, or whole tensors."""
    width = k.shape[3]
    return k.stride() == v.stride() and k.stride()[2:] == (width, 1) and k.stride(1) % width == 0


def argmax(x: Tensor) -> Tensor:
    """See `trees.argmax`."""
    if not x.shape[-1]:
        return trees.argmax(x)
    return native.argmax(x.reshape(-1, x.shape[-1]).contiguous()).view(x.shape[:-1])


def top_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """See `trees.top_children`."""
    if _needs_gradients(logits):
        return trees.top_children(logits, count)
    best, ids = native.top(logits.reshape(-1, logits.shape[-1]).contiguous(), count)
    return best.view(*logits.shape[:-1], count), ids.view(*logits.shape[:-1], count)


def best_children(logits: Tensor, count: int) -> Tensor:
    """See `trees.best_children`."""
    return trees.best_children(logits, count) if _needs_gradients(logits) else top_children(logits, count)[0]


def ancestors(parents: Tensor, depth: int) -> Tensor:
    """See `trees.ancestors`."""
    return native_trees.ancestors(parents.contiguous())


def walk(
    tokens: Tensor, parents: Tensor, levels: Tensor, next_tokens: Tensor, ancestors: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """See `trees.walk`."""
    return native_trees.walk(tokens.contiguous(), parents.contiguous(), next_tokens.contiguous(), depth + 1)


def pack_walks(parents: Tensor, path: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
    """See `trees.pack_walks`."""
    return native_trees.pack_walks(parents.contiguous(), path.contiguous(), lengths.contiguous(), tokens.contiguous())


def tree_mask(reads: Tensor, lengths: Tensor, base: int, dtype: torch.dtype) -> Tensor:
    """See `trees.tree_mask`."""
    return native_trees.mask(reads.contiguous(), lengths.contiguous(), base)


def children_state(logp: Tensor, least: float) -> Tensor:
    """See `trees.children_state`."""
    if _needs_gradients(logp):
        return trees.children_state(logp, least)
    return native_trees.children(logp.contiguous(), least)


def reach(scores: Tensor, most: int) -> Tensor:
    """See `trees.reach`."""
    return native_trees.reach(scores.contiguous(), most)


def worth(scores: Tensor, sizes: Tensor, prices: Tensor) -> Tensor:
    """See `trees.worth`."""
    return native_trees.worth(scores.contiguous(), sizes, prices)
