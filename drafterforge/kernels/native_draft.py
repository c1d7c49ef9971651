"""The layer and the head of an EAGLE-3 drafter in one call, and all levels of a draft, with layers.h.

LoRA experts of one generalist read together in one call, too.  Where drafters with weights of their own read together,
torch rotates their heads, which may round twice; here they are rounded once.  All results are batch-invariant.
Axes: B sequences, T tokens of each, R = B * T rows, S slots that attention reads, H hidden, D head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_double, c_int, c_long, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.kernels import native
from drafterforge.kernels.attention import Heads
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.native import MOST_QUERIES, address
from drafterforge.kernels.native_layers import Layers, Linear, Passage, checked_gain, raise_failure
from drafterforge.kernels.native_linear import NATIVE_ROWS, Projection
from drafterforge.kernels.native_trees import NativeCandidates
from drafterforge.kernels.rope import RopeTable

DRAFT_NORMS = ("input_norm", "hidden_norm", "post_norm", "norm")
DRAFT_PROJECTIONS = ("q", "kv", "out", "gate_up", "down", "head")


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


class PackedDraftLayer(Layers):
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
        self.experts = max(packed.experts for packed in self.packed)
        width, keys, gated = heads.queries * heads.width, 2 * heads.keys * heads.width, self.packed[4].depth
        self.hidden, self.num_logits = self.packed[2].out, self.packed[5].out
        self.require_widths(
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
        self.parameters = [embedding, *(checked_gain(gains[name], self.hidden) for name in DRAFT_NORMS)]
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
        The sequences are divided among the experts of the projections, in order.
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
        if batch % self.experts:
            raise ValueError(f"{batch} sequences cannot be divided among {self.experts} experts")
        if count % batch or count > tokens.numel():
            raise ValueError(f"wanted at most {tokens.numel()} tokens, as many of each of {batch} rows, got {count}")
        passage, _tensors = self.passage(positions, count // batch, rope, cache, mask)
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
            *self.constants,
            out.data_ptr(),
            logits.data_ptr(),
            torch.get_num_threads(),
        )
        raise_failure(failed, passage.slots)
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
        cosines, sines = self.rotations(rope, lengths + max(depth - 2, 0))
        passage = Passage(
            *self.stored(cache, batch),
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
            *map(ctypes.addressof, parts), *self.constants, ctypes.addressof(levels), torch.get_num_threads()
        )
        raise_failure(failed, passage.slots)
        pool.fill(levels.value, min(beam, width), beam)
        decisions = 0 if least is None else min(levels.value, depth - 1)
        return DraftedLevels(levels.value, reaches[:decisions].tolist(), list(clock[:decisions]))
