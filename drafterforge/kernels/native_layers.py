"""Decoder layers in one call, with layers.h: Python takes as long between two small kernels as a small kernel does.

All results have the bits of the single kernels of `native`, so they are batch-invariant.
Axes: B sequences, T tokens of each, R = B * T rows, S slots that attention reads, H hidden, D head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_int64, c_long, c_void_p
from typing import Protocol

import torch
from torch import Tensor

from drafterforge.kernels import native
from drafterforge.kernels.attention import Heads, additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.masks import Mask
from drafterforge.kernels.native import NATIVE_ROWS, PackedAddition, PackedLinear, Projection, address
from drafterforge.kernels.rope import RopeTable

MOST_QUERIES = 64  # of a sequence; the kernels of more are called one by one, in blocks
OUTSIDE = 1  # what functions of layers.h return if a number lies outside what it counts; 2: no memory
DRAFT_NORMS = ("input_norm", "hidden_norm", "post_norm", "norm")
DRAFT_PROJECTIONS = ("q", "kv", "out", "gate_up", "down", "head")


class _Passage(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values")),
        *((name, c_long) for name in ("layer_stride", "batch_stride", "slots")),
        ("slots_of", c_void_p),
        *((name, c_long) for name in ("start", "used")),
        ("mask", c_void_p),
        ("mask_stride", c_long),
        *((name, c_void_p) for name in ("positions", "cosines", "sines")),
        *((name, c_long) for name in ("batch", "length", "num_positions")),
    )


class _DecoderLayer(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
        *((name, Projection) for name in ("qkv", "out", "gate_up", "down")),
    )


class _DraftLayer(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("embedding", *DRAFT_NORMS)),
        *((name, Projection) for name in DRAFT_PROJECTIONS),
        ("vocabulary", c_long),
        *((name, c_int) for name in ("norm_before_residual", "norm_output")),
    )


class Linear(Protocol):
    """A linear layer that may be packed."""

    native: PackedLinear | PackedAddition | None


class DecoderLayer(Protocol):
    """Weights of a decoder layer; norms are gains, [H] or, of heads, [D]."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class _Layers:
    """What targets and drafters have in common."""

    def __init__(self, linears: Sequence[Linear], heads: Heads, eps: float) -> None:
        self.packed = [linear.native for linear in linears]  # C gets addresses alone
        self.heads, self.eps = heads, eps
        self.any_rows = all(packed.any_rows for packed in self.packed)

    def takes(self, tokens: Tensor, queries: int, cache: KeyValueCache | None, mask: Mask | None) -> bool:
        """Whether a pass of tokens [B, T], `queries` of each row, has few enough of them and a mask for C."""
        if cache is None or self.heads.width % 2 or not (self.any_rows or tokens.numel() <= NATIVE_ROWS):
            return False
        if mask is None:
            begins = cache.slots is None and cache.start == 0 and cache.used == queries
            return queries == 1 or (begins and queries <= MOST_QUERIES)
        return queries <= MOST_QUERIES and isinstance(mask, Tensor) and mask.is_contiguous()

    def _passage(
        self, positions: Tensor, queries: int, rope: RopeTable, cache: KeyValueCache, mask: Tensor | None
    ) -> tuple[_Passage, list[Tensor | None]]:
        """The passage, and the tensors to keep while it is used.

        positions: [B, T].  mask: None: of texts that begin in this pass, or of one query, which reads all slots.
        """
        batch, length = positions.shape
        data, width = cache.active, self.heads.width
        cosines, sines = rope.table(positions, torch.float32)
        positions = positions.contiguous()
        native.require(positions, (batch, length), torch.long)
        native.require(cosines, (len(sines), 1, 1, width // 2))
        native.require(sines, (len(sines), 1, 2, width // 2))
        if mask is None and queries > 1:  # `tril` would start torch's threads, which compete with ours for the cores
            token = torch.arange(length)
            mask = additive(token <= token[:, None], torch.float32)[None]
        if mask is not None:
            native.require(mask, (1 if mask.shape[0] == 1 else batch, queries, cache.used))
        slots = None if cache.slots is None else cache.slots.contiguous()
        if slots is not None:
            native.require(slots, (batch, length), torch.long)
        if data.dtype != torch.float32 or data.shape[2:4] != (batch, self.heads.keys) or data.shape[5] != width:
            raise ValueError(f"wanted float32 keys of {batch} rows, {self.heads}; got {data.dtype} {list(data.shape)}")
        if not 0 < cache.used <= data.shape[4] or data.stride()[3:] != (data.shape[4] * width, width, 1):
            raise ValueError(f"wanted 1 to {data.shape[4]} contiguous slots, got {cache.used}")
        passage = _Passage(
            data.data_ptr(),
            data.data_ptr() + data.stride(1) * data.element_size(),
            data.stride(0),
            data.stride(2),
            data.shape[4],
            address(slots),
            cache.start,
            cache.used,
            address(mask),
            0 if mask is None or mask.shape[0] == 1 else mask.stride(0),
            positions.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            batch,
            length,
            len(sines),
        )
        return passage, [data, positions, cosines, sines, mask, slots]

    @property
    def _constants(self) -> tuple[int, int, int, float, float]:
        heads = self.heads
        return heads.queries, heads.keys, heads.width, heads.width**-0.5, self.eps


class PackedDecoder(_Layers):
    """All decoder layers of a target."""

    def __init__(self, layers: Sequence[DecoderLayer], heads: Heads, eps: float) -> None:
        """layers: packed."""
        linears = [linear for layer in layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        super().__init__(linears, heads, eps)
        self.gains = [
            [_contiguous(gain) for gain in (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm)]
            for layer in layers
        ]
        by_kind = [[packed.projection for packed in self.packed[first::4]] for first in range(4)]
        parts = zip(self.gains, *by_kind, strict=True)
        self.layers = (_DecoderLayer * len(layers))(
            *(_DecoderLayer(*map(address, gains), *projections) for gains, *projections in parts)
        )

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        rope: RopeTable,
        cache: KeyValueCache,
        mask: Tensor | None,
        taps: Sequence[int],
    ) -> Tensor:
        """Apply the layers to x [R, H], in place; inputs of the tapped layers side by side, [R, len(taps) * H].

        positions: [B, T].  mask: see `native.attention`; None: of texts that begin in this pass.
        """
        rows, hidden = positions.numel(), self.packed[0].depth
        native.require(x, (rows, hidden))
        passage, tensors = self._passage(positions, positions.shape[1], rope, cache, mask)
        features = torch.empty(rows, len(taps) * hidden)
        tapped = (c_int64 * len(taps))(*taps)
        failed = native.library().df_decoder(
            ctypes.addressof(self.layers),
            len(self.layers),
            ctypes.addressof(passage),
            x.data_ptr(),
            *self._constants,
            ctypes.addressof(tapped),
            len(taps),
            features.data_ptr(),
            torch.get_num_threads(),
        )
        _check(failed, tensors)
        return features


class PackedDraftLayer(_Layers):
    """The layer and the head of an EAGLE-3 drafter."""

    def __init__(
        self,
        embedding: Tensor,
        linears: Mapping[str, Linear],
        gains: Mapping[str, Tensor],
        heads: Heads,
        eps: float,
        norm_before_residual: bool,
        norm_output: bool,
    ) -> None:
        """embedding: [V, H].  linears: those of DRAFT_PROJECTIONS, packed.  gains: those of DRAFT_NORMS, [H]."""
        super().__init__([linears[name] for name in DRAFT_PROJECTIONS], heads, eps)
        self.parameters = [part.contiguous() for part in (embedding, *(gains[name] for name in DRAFT_NORMS))]
        projections = [packed.projection for packed in self.packed]
        self.layer = _DraftLayer(
            *map(address, self.parameters), *projections, len(embedding), norm_before_residual, norm_output
        )

    def __call__(
        self,
        tokens: Tensor,
        hidden: Tensor,
        origin: Tensor | None,
        positions: Tensor,
        rope: RopeTable,
        cache: KeyValueCache,
        mask: Tensor | None,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs [R', H] and logits [R', W] of some of the tokens [B, T], as many of each row.

        hidden: [B, K, H]; token t reads row origin[b, t] of it, without origin row t.  positions: [B, T].  cache: of
        one layer.  mask: see `native.attention`, of those tokens.  rows: their indices, [R'] int64; None: all R tokens.
        """
        batch, width = len(tokens), self.packed[2].out
        tokens, hidden = tokens.contiguous(), hidden.contiguous()
        native.require(tokens, tuple(positions.shape), torch.long)
        native.require(hidden, (batch, hidden.shape[1], width))
        origin = None if origin is None else origin.contiguous()
        if origin is not None:
            native.require(origin, tuple(positions.shape), torch.long)
        count = tokens.numel() if rows is None else len(rows)
        if rows is not None:
            native.require(rows, (count,), torch.long)
        if count % batch or count > tokens.numel():
            raise ValueError(f"wanted at most {tokens.numel()} tokens, as many of each of {batch} rows, got {count}")
        passage, tensors = self._passage(positions, count // batch, rope, cache, mask)
        out, logits = torch.empty(count, width), torch.empty(count, self.packed[5].out)
        failed = native.library().df_draft_layer(
            ctypes.addressof(self.layer),
            ctypes.addressof(passage),
            tokens.data_ptr(),
            hidden.data_ptr(),
            address(origin),
            hidden.shape[1],
            address(rows),
            count,
            *self._constants,
            out.data_ptr(),
            logits.data_ptr(),
            torch.get_num_threads(),
        )
        _check(failed, tensors)
        return out, logits


def _contiguous(gain: Tensor | None) -> Tensor | None:
    return None if gain is None else gain.contiguous()


def _check(failed: int, tensors: list[Tensor | None]) -> None:
    """Raise what a function of layers.h reports.  tensors: tensors that it has read, which lived until now."""
    if failed == OUTSIDE:
        raise IndexError(
            f"a slot lies outside the cache's {tensors[0].shape[4]}, or a token, position or origin is none"
        )
    if failed:
        raise MemoryError("no memory for the layers of a pass")
