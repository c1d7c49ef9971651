"""The kernels of a GPU with the names and arguments of their torch twins: Triton where a trial shows that it is faster.

Torch computes all that depends on batch invariance (`exact`), passes without a tree mask, and all on other devices.
Axes: B batch, T queries, S slots, Hq query heads, Hk key heads, D head width.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from drafterforge.kernels import attention as by_torch
from drafterforge.kernels import low_rank
from drafterforge.kernels.attention import AttendLayer, Heads, WriteLayer
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.masks import Mask, TreeMask, additive_mask
from drafterforge.kernels.trials import KernelTrials, Operation
from drafterforge.kernels.triton_support import supports

TRIALS = KernelTrials()


def _prefers_triton(name: str, x: Tensor, sizes: Sequence[int], kernel: Operation, reference: Operation) -> bool:
    """Whether the Triton kernel `name` is faster for the dtype and device of x, and sizes of this class.

    Sizes are of one class if they round up to the same power of two.
    """
    if not supports(x.device):
        return False
    shape_class = (x.dtype, x.device, *(1 << max(size - 1, 0).bit_length() for size in sizes))
    return TRIALS.prefers(name, shape_class, kernel, reference)


def _faster(name: str, x: Tensor, sizes: Sequence[int], kernel: Operation, reference: Operation) -> Tensor:
    """The result of the faster operation."""
    return kernel() if _prefers_triton(name, x, sizes, kernel, reference) else reference()


def tree_mask(reads: Tensor, lengths: Tensor, base: int, dtype: torch.dtype) -> TreeMask:
    """See `trees.tree_mask`; as lengths and bits."""
    return TreeMask(reads, lengths, base, dtype)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, exact: bool = False) -> Tensor:
    """See `attention.grouped_attention`."""
    if exact or not isinstance(mask, TreeMask):
        return by_torch.grouped_attention(q, k, v, additive_mask(mask), exact)
    return _tree_attention(q, k, v, mask)


def _tree_attention(q: Tensor, k: Tensor, v: Tensor, mask: TreeMask) -> Tensor:
    """[B, T, Hq, D]; see `grouped_attention`."""

    def kernel() -> Tensor:
        from drafterforge.kernels import triton_attention, triton_masks

        bits = mask.bits(triton_masks.pack_reads)
        return triton_attention.tree_attention(q, k, v, bits, mask.lengths, mask.base)

    def reference() -> Tensor:
        return by_torch.folded_attention(q, k, v, mask.folded(q.shape[2] // k.shape[1]))

    sizes = (*q.shape, k.shape[1], k.shape[2])
    return _faster("tree_attention", q, sizes, kernel, reference)


def rotated_attention(
    cos: Tensor,
    sin: Tensor,
    shape: tuple[int, int],
    heads: Heads,
    cache: KeyValueCache | None,
    mask: Mask | None,
    exact: bool = False,
) -> AttendLayer:
    """See `attention.rotated_attention`."""
    if exact or cache is None or not isinstance(mask, TreeMask):
        return by_torch.rotated_attention(cos, sin, shape, heads, cache, additive_mask(mask), exact)
    batch, length = shape
    write: WriteLayer | None = None

    def attend(index: int, qkv: Tensor) -> Tensor:
        nonlocal write
        if write is None:
            write = _choose_writer(cos, sin, shape, heads, cache, qkv)
        return _tree_attention(*write(index, qkv), mask).reshape(batch * length, -1)

    return attend


def _choose_writer(
    cos: Tensor, sin: Tensor, shape: tuple[int, int], heads: Heads, cache: KeyValueCache, qkv: Tensor
) -> WriteLayer:
    """The faster of both writers.  qkv: of any layer; in a trial each writer has a copy of the first layer's cache."""

    def trial(writer: Callable[..., WriteLayer]) -> Operation:
        @functools.cache
        def write() -> WriteLayer:
            part = copy.copy(cache)
            part.num_opened = 0
            part.replace(cache.active[:1].clone())
            return writer(cos, sin, shape, heads, part)

        return lambda: write()(0, qkv)

    kernel, reference = trial(_rotary_writer), trial(by_torch.rotary_writer)
    prefers_triton = _prefers_triton("rotate_and_write", qkv, (*shape, *heads), kernel, reference)
    return (_rotary_writer if prefers_triton else by_torch.rotary_writer)(cos, sin, shape, heads, cache)


def _rotary_writer(cos: Tensor, sin: Tensor, shape: tuple[int, int], heads: Heads, cache: KeyValueCache) -> WriteLayer:
    """See `attention.rotary_writer`."""
    from drafterforge.kernels.triton_cache import rotate_and_write

    half = heads.width // 2
    cos, sin = cos.reshape(-1, half), sin[..., 1, :].reshape(-1, half)

    def write(index: int, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stored = cache.active[index]
        q = rotate_and_write(qkv, cos, sin, stored, cache.slots, cache.start, heads)
        keys, values = stored[:, :, :, : cache.used]
        return q.view(*shape, heads.queries, heads.width), keys, values

    return write


def add_low_rank(out: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """See `low_rank.add_low_rank`."""

    def kernel() -> Tensor:
        from drafterforge.kernels import triton_lora

        return triton_lora.add_low_rank(out, x, down, up)

    def reference() -> Tensor:
        return low_rank.add_low_rank(out, x, down, up)

    sizes = (x.shape[-2], *down.shape, up.shape[2])
    return _faster("add_low_rank", x, sizes, kernel, reference)


def add_expert_low_rank(out: Tensor, x: Tensor, down: Tensor, up: Tensor, experts: Tensor) -> Tensor:
    """See `low_rank.add_expert_low_rank`."""

    def kernel() -> Tensor:
        from drafterforge.kernels import triton_lora

        return triton_lora.add_expert_low_rank(out, x, down, up, experts)

    def reference() -> Tensor:
        return low_rank.add_expert_low_rank(out, x, down, up, experts)

    sizes = (x.shape[0], *down.shape, up.shape[2])
    return _faster("add_expert_low_rank", x, sizes, kernel, reference)
