"""Decoder layers in one call, with layers.h: for few rows, calling a kernel from Python takes as long as the kernel.

A target's results have the bits of its kernels called one by one.  A drafter's heads are rotated by torch elsewhere,
which may round twice.  All results are batch-invariant.
Axes: B sequences, T tokens of each, R = B * T rows, S slots that attention reads, H hidden, D head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_double, c_int, c_int64, c_long, c_void_p
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drafterforge.kernels import native
from drafterforge.kernels.attention import Heads, additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.masks import Mask
from drafterforge.kernels.native import MOST_QUERIES, address
from drafterforge.kernels.native_linear import NATIVE_ROWS, PackedAddition, PackedLinear, Projection
from drafterforge.kernels.native_trees import NativeCandidates
from drafterforge.kernels.rope import RopeTable

OUT_OF_RANGE = 1  # what functions of layers.h return then; 2: no memory
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


class _Draft(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("hidden", "logits", "lengths", "names", "least")),
        *((name, c_long) for name in ("rows", "depth", "children", "beam", "base", "room")),
        *((name, c_void_p) for name in ("tokens", "parents", "scores", "reaches", "clock")),
    )


class DraftedLevels(NamedTuple):
    """What was decided while a draft grew."""

    count: int  # levels
    reaches: list[list[float]]  # of each row, after each level but the last
    clock: list[float]  # when, in seconds of a monotonic clock


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

    def _require_widths(self, names: Sequence[str], **widths: tuple[int, int]) -> None:
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

    def _passage(
        self, positions: Tensor, queries: int, rope: RopeTable, cache: KeyValueCache, mask: Tensor | None
    ) -> tuple[_Passage, list[Tensor | None]]:
        """The passage, and the tensors to keep until C returns: it holds only addresses.

        positions: [B, T].  mask: None: one query of each row reads all slots, or texts begin in this pass (causal).
        """
        batch, length = positions.shape
        stored, (cosines, sines) = self._stored(cache, batch), self._rotations(rope, positions)
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
        passage = _Passage(
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

    def _stored(self, cache: KeyValueCache, batch: int) -> tuple[int, int, int, int, int]:
        """Addresses of keys and values, strides of layers and rows, and slots of a cache."""
        data, width = cache.active, self.heads.width
        if data.dtype != torch.float32 or data.shape[2:4] != (batch, self.heads.keys) or data.shape[5] != width:
            raise ValueError(f"wanted float32 keys of {batch} rows, {self.heads}; got {data.dtype} {list(data.shape)}")
        if not 0 < cache.used <= data.shape[4] or data.stride()[3:] != (data.shape[4] * width, width, 1):
            raise ValueError(f"wanted 1 to {data.shape[4]} contiguous slots, got {cache.used}")
        values = data.data_ptr() + data.stride(1) * data.element_size()
        return data.data_ptr(), values, data.stride(0), data.stride(2), data.shape[4]

    def _rotations(self, rope: RopeTable, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines up to these positions."""
        cosines, sines = rope.table(positions, torch.float32)
        native.require(cosines, (len(sines), 1, 1, self.heads.width // 2))
        native.require(sines, (len(sines), 1, 2, self.heads.width // 2))
        return cosines, sines

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
        self.hidden, gated, width = self.packed[0].depth, self.packed[3].depth, heads.queries * heads.width
        self._require_widths(
            ("qkv", "out", "gate_up", "down"),
            qkv=(width + 2 * heads.keys * heads.width, self.hidden),
            out=(self.hidden, width),
            gate_up=(2 * gated, self.hidden),
            down=(self.hidden, gated),
        )
        self.gains = [
            [
                *(_gain(gain, self.hidden) for gain in (layer.input_norm, layer.post_norm)),
                *(_gain(gain, heads.width) for gain in (layer.q_norm, layer.k_norm)),
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
        passage, _tensors = self._passage(positions, positions.shape[1], rope, cache, mask)
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
        _check(failed, passage.slots)
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
        width, keys, gated = heads.queries * heads.width, 2 * heads.keys * heads.width, self.packed[4].depth
        self.hidden, self.num_logits = self.packed[2].out, self.packed[5].out
        self._require_widths(
            DRAFT_PROJECTIONS,
            q=(width, 2 * self.hidden),
            kv=(keys, 2 * self.hidden),
            out=(self.hidden, width),
            gate_up=(2 * gated, self.hidden),
            down=(self.hidden, gated),
            head=(0, self.hidden),
        )
        embedding = embedding.contiguous()
        native.require(embedding, (len(embedding), self.hidden))
        self.parameters = [embedding, *(_gain(gains[name], self.hidden) for name in DRAFT_NORMS)]
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
        batch = len(tokens)
        tokens, hidden = tokens.contiguous(), hidden.contiguous()
        native.require(tokens, tuple(positions.shape), torch.long)
        native.require(hidden, (batch, hidden.shape[1], self.hidden))
        origin = None if origin is None else origin.contiguous()
        if origin is not None:
            native.require(origin, tuple(positions.shape), torch.long)
        count = tokens.numel() if rows is None else len(rows)
        if rows is not None:
            native.require(rows, (count,), torch.long)
        if count % batch or count > tokens.numel():
            raise ValueError(f"wanted at most {tokens.numel()} tokens, as many of each of {batch} rows, got {count}")
        passage, _tensors = self._passage(positions, count // batch, rope, cache, mask)
        out, logits = torch.empty(count, self.hidden), torch.empty(count, self.num_logits)
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
        _check(failed, passage.slots)
        return out, logits

    def drafts(self, cache: KeyValueCache, pool: object, beam: int) -> bool:
        """Whether `draft` can fill a pool, with beams of so many nodes."""
        rows = cache.active.shape[2] * beam
        return (
            isinstance(pool, NativeCandidates)
            and self.heads.width % 2 == 0
            and beam <= MOST_QUERIES
            and (self.any_rows or rows <= NATIVE_ROWS)
        )

    def draft(
        self,
        hidden: Tensor,
        logits: Tensor,
        lengths: Tensor,
        base: int,
        shape: tuple[int, int],
        rope: RopeTable,
        cache: KeyValueCache,
        pool: NativeCandidates,
        least: Tensor | None,
    ) -> DraftedLevels:
        """Add all levels of a draft to an empty pool, as `tree.expand` does level by level.

        hidden: [B, H] and logits: [B, W], of each row's newest stable token.  lengths: stable slots of each row, [B]
        int64.  base: slot of the first level; slots of all levels are reserved.  shape: levels, and children of a
        node, which is also the most nodes of a beam.  least: reach from which each row has another level, [B] float64;
        None: all have all.
        """
        (batch, width), (depth, beam) = logits.shape, shape
        hidden, logits = hidden.contiguous(), logits.contiguous()
        native.require(hidden, (batch, self.hidden))
        native.require(logits, (batch, self.num_logits))
        native.require(lengths, (batch,), torch.long)
        if least is not None:
            native.require(least, (batch,), torch.double)
        names, tokens, parents, scores = pool.to_fill(batch, width, depth, beam)
        cache.set_slots(base, beam * (depth - 1))
        cosines, sines = self._rotations(rope, lengths + max(depth - 2, 0))
        passage = _Passage(
            *self._stored(cache, batch),
            *(0, 0, 0, 0, 0, 0),  # of each level
            cosines.data_ptr(),
            sines.data_ptr(),
            batch,
            0,
            len(sines),
        )
        reaches, clock, levels = torch.empty(depth, batch, dtype=torch.double), (c_double * depth)(), c_long()
        draft = _Draft(
            *(part.data_ptr() for part in (hidden, logits, lengths)),
            names,
            address(least),
            batch,
            depth,
            min(beam, width),
            beam,
            base,
            pool.most,
            *(tokens, parents, scores),
            reaches.data_ptr(),
            ctypes.addressof(clock),
        )
        parts = self.layer, passage, draft
        failed = native.library().df_draft(
            *map(ctypes.addressof, parts), *self._constants, ctypes.addressof(levels), torch.get_num_threads()
        )
        _check(failed, passage.slots)
        pool.fill(levels.value, min(beam, width), beam)
        decisions = 0 if least is None else min(levels.value, depth - 1)
        return DraftedLevels(levels.value, reaches[:decisions].tolist(), list(clock[:decisions]))


def pack_decoder(layers: Sequence[DecoderLayer], heads: Heads, eps: float) -> PackedDecoder | None:
    """None if some weights have another dtype, which torch then computes in, kernel by kernel."""
    linears = [linear for layer in layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    gains = [gain for layer in layers for gain in (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm)]
    if any(linear.native is None for linear in linears) or any(
        gain is not None and gain.dtype != torch.float32 for gain in gains
    ):
        return None
    return PackedDecoder(layers, heads, eps)


def _gain(gain: Tensor | None, width: int) -> Tensor | None:
    if gain is None:
        return None
    gain = gain.contiguous()
    native.require(gain, (width,))
    return gain


def _check(failed: int, slots: int) -> None:
    """Raise what a function of layers.h reports.  slots: of the cache."""
    if failed == OUT_OF_RANGE:
        raise IndexError(
            f"a token, position, origin or row is out of range, or a slot is not one of the cache's {slots}"
        )
    if failed:
        raise MemoryError("no memory for the layers of a pass")
