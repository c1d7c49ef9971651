"""A target's decoder layers in one call, with layers.h, and what they have in common with a drafter's layer.

For few rows, calling a kernel from Python takes as long as the kernel.  Results have the bits of kernels called one by
one, and are batch-invariant.
Axes: B sequences, T tokens of each, R = B * T rows, S slots that attention reads, H hidden, D head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_long, c_void_p
from typing import Protocol

import torch
from torch import Tensor

from drafterforge.kernels import native
from drafterforge.kernels.attention import Heads, additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.masks import Mask
from drafterforge.kernels.native import MOST_QUERIES, address
from drafterforge.kernels.native_linear import NATIVE_ROWS, PackedAddition, PackedLinear, Projection
from drafterforge.kernels.rope import RopeTable

OUT_OF_RANGE = 1  # what functions of layers.h return then; 2: no memory


class Passage(ctypes.Structure):
    """Tokens of a pass, and the cache that it writes and reads, as C reads them."""

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


class Layers:
    """What targets and drafters have in common."""

    def __init__(self, linears: Sequence[Linear], heads: Heads, eps: float) -> None:
        self.packed = [linear.native for linear in linears]  # C gets addresses alone
        self.heads, self.eps = heads, eps
        self.any_rows = all(packed.any_rows for packed in self.packed)

    def require_widths(self, names: Sequence[str], **widths: tuple[int, int]) -> None:
        """Refuse projections, repeating in the order of `names`, that are not [out, in] as given by name."""
        for index, packed in enumerate(self.packed):
            name = names[index % len(names)]
            out, depth = widths[name]
            if (packed.out, packed.depth) != (out or packed.out, depth):
                raise ValueError(f"{name} is [{packed.out}, {packed.depth}], wanted [{out or 'any'}, {depth}]")

    def takes(self, tokens: Tensor, queries: int, cache: KeyValueCache | None, mask: Mask | None) -> bool:
        """Whether C computes a pass: of tokens [B, T], of which `queries` of each row attend."""
        if cache is None or self.heads.width % 2 or not (self.any_rows or tokens.numel() <= NATIVE_ROWS):
            return False
        if mask is None:
            begins = cache.slots is None and cache.start == 0 and cache.used == queries
            return queries == 1 or (begins and queries <= MOST_QUERIES)
        is_additive = isinstance(mask, Tensor) and mask.dtype == torch.float32 and mask.is_contiguous()
        return queries <= MOST_QUERIES and is_additive and mask.shape[1] == queries

    def passage(
        self, positions: Tensor, queries: int, rope: RopeTable, cache: KeyValueCache, mask: Tensor | None
    ) -> tuple[Passage, list[Tensor | None]]:
        """The passage, and the tensors to keep until C returns: it holds only addresses.

        positions: [B, T].  mask: None: one query of each row reads all slots, or texts begin in this pass (causal).
        """
        batch, length = positions.shape
        stored, (cosines, sines) = self.stored(cache, batch), self.rotations(rope, positions)
        positions = positions.contiguous()
        native.require(positions, (batch, length), torch.long)
        if mask is None and queries > 1:  # `tril` would start torch's threads, which compete with ours for the cores
            token = torch.arange(length)
            mask = additive(token <= token[:, None], torch.float32)[None]
        if mask is not None:
            native.require(mask, (1 if mask.shape[0] == 1 else batch, queries, cache.used))
        slots = None if cache.slots is None else cache.slots.contiguous()
        if slots is not None:
            native.require(slots, (batch, length), torch.long)
        passage = Passage(
            *stored,
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
        return passage, [cache.active, positions, cosines, sines, mask, slots]

    def stored(self, cache: KeyValueCache, batch: int) -> tuple[int, int, int, int, int]:
        """Addresses of keys and values, strides of layers and rows, and slots of a cache."""
        data, width = cache.active, self.heads.width
        if data.dtype != torch.float32 or data.shape[2:4] != (batch, self.heads.keys) or data.shape[5] != width:
            raise ValueError(f"wanted float32 keys of {batch} rows, {self.heads}; got {data.dtype} {list(data.shape)}")
        if not 0 < cache.used <= data.shape[4] or data.stride()[3:] != (data.shape[4] * width, width, 1):
            raise ValueError(f"wanted 1 to {data.shape[4]} contiguous slots, got {cache.used}")
        values = data.data_ptr() + data.stride(1) * data.element_size()
        return data.data_ptr(), values, data.stride(0), data.stride(2), data.shape[4]

    def rotations(self, rope: RopeTable, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines up to these positions."""
        cosines, sines = rope.table(positions, torch.float32)
        native.require(cosines, (len(sines), 1, 1, self.heads.width // 2))
        native.require(sines, (len(sines), 1, 2, self.heads.width // 2))
        return cosines, sines

    @property
    def constants(self) -> tuple[int, int, int, float, float]:
        """Queries and keys of a token, head width, factor of scores, and the eps of norms."""
        heads = self.heads
        return heads.queries, heads.keys, heads.width, heads.width**-0.5, self.eps


class PackedDecoder(Layers):
    """All decoder layers of a target."""

    def __init__(self, layers: Sequence[DecoderLayer], heads: Heads, eps: float) -> None:
        """layers: packed."""
        linears = [linear for layer in layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        super().__init__(linears, heads, eps)
        self.hidden, gated, width = self.packed[0].depth, self.packed[3].depth, heads.queries * heads.width
        self.require_widths(
            ("qkv", "out", "gate_up", "down"),
            qkv=(width + 2 * heads.keys * heads.width, self.hidden),
            out=(self.hidden, width),
            gate_up=(2 * gated, self.hidden),
            down=(self.hidden, gated),
        )
        self.gains = [
            [
                *(checked_gain(gain, self.hidden) for gain in (layer.input_norm, layer.post_norm)),
                *(checked_gain(gain, heads.width) for gain in (layer.q_norm, layer.k_norm)),
            ]
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

        positions: [B, T].  mask: see `native.attention`; None: one query of each row reads all slots, or texts begin in
        this pass (causal).
        """
        rows, hidden = positions.numel(), self.hidden
        native.require(x, (rows, hidden))
        passage, _tensors = self.passage(positions, positions.shape[1], rope, cache, mask)
        features = torch.empty(rows, len(taps) * hidden)
        tapped = (c_int64 * len(taps))(*taps)
        failed = native.library().df_decoder(
            ctypes.addressof(self.layers),
            len(self.layers),
            ctypes.addressof(passage),
            x.data_ptr(),
            *self.constants,
            ctypes.addressof(tapped),
            len(taps),
            features.data_ptr(),
            torch.get_num_threads(),
        )
        raise_failure(failed, passage.slots)
        return features


def pack_decoder(layers: Sequence[DecoderLayer], heads: Heads, eps: float) -> PackedDecoder | None:
    """None if some weights have another dtype, which torch then computes in, kernel by kernel."""
    linears = [linear for layer in layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    gains = [gain for layer in layers for gain in (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm)]
    if any(linear.native is None for linear in linears) or any(
        gain is not None and gain.dtype != torch.float32 for gain in gains
    ):
        return None
    return PackedDecoder(layers, heads, eps)


def checked_gain(gain: Tensor | None, width: int) -> Tensor | None:
    """A contiguous gain of this width; None if there is none."""
    if gain is None:
        return None
    gain = gain.contiguous()
    native.require(gain, (width,))
    return gain


def raise_failure(failed: int, slots: int) -> None:
    """Raise what a function of layers.h reports.  slots: of the cache."""
    if failed == OUT_OF_RANGE:
        raise IndexError(
            f"a token, position, origin or row is out of range, or a slot is not one of the cache's {slots}"
        )
    if failed:
        raise MemoryError("no memory for the layers of a pass")
