"""Accepts drafted tokens on the device, and packs the outcome into one tensor for the host.

Axes: B rows, T tree nodes, D drafted levels, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.kernels.dispatch import kernels_of, tree_kernels
from drafterforge.runtime.sampling import Picker
from drafterforge.tree.accept import accepted_path, sampled_path
from drafterforge.tree.grow import Tree


@dataclass(frozen=True)
class Acceptance:
    """What a cycle accepted, on the host; one entry for each row."""

    sizes: list[int]  # nodes of the tree, without padding
    counts: list[int]  # tokens accepted, bonus included
    paths: list[list[int]]  # nodes of the accepted walk, padded
    tokens: list[list[int]]  # the token after each node of the walk

    @staticmethod
    def unpack(packed: Tensor) -> Acceptance:
        """Read what `pack` wrote.  packed: in the host's memory."""
        rows, width = packed.tolist(), packed.shape[1] // 2
        return Acceptance(
            sizes=[row[0] for row in rows],
            counts=[row[1] for row in rows],
            paths=[row[2 : 1 + width] for row in rows],
            tokens=[row[1 + width : 1 + width + row[1]] for row in rows],
        )


def pack(tree: Tree, path: Tensor, counts: Tensor, tokens: Tensor) -> Tensor:
    """Sizes, counts [B], walks and tokens [B, D + 1] in one tensor."""
    return tree_kernels(path).pack_walks(tree.parents, path, counts, tokens)


def accept(
    record: CycleRecord, ancestors: Tensor, picker: Picker, uniform: Tensor | None, seen: Tensor | None
) -> Tensor:
    """Walk a cycle's trees by the target's logits; returns the lengths of the walks, [B], bonus included.

    ancestors: see `ancestor_mask`.  uniform: noise of the positions after the root's, [B, D + 1].  seen: tokens of
    each text, [B, V] bool, to which those of the walks are added.
    """
    tree, logits, depth = record.tree, record.logits, record.bounds.depth
    if not picker.greedy:
        before = seen.clone() if picker.penalised else None  # the walk adds to it
        record.distribution = partial(picker.distributions, seen=before)
    if picker.plain:
        best = kernels_of(logits).argmax(logits)
        record.path, counts = accepted_path(tree, best, ancestors, depth)
        record.next_tokens = best.gather(1, record.path)
    else:

        def pick(level: int, logits: Tensor, walking: Tensor) -> Tensor:
            token = picker(logits, None if uniform is None else uniform[:, level], seen)
            if seen is not None:
                seen.logical_or_(walking[:, None] & torch.zeros_like(seen).scatter_(1, token[:, None], True))
            return token

        record.path, counts, record.next_tokens = sampled_path(tree, logits, depth, pick)
    record.packed = pack(tree, record.path, counts, record.next_tokens)
    return counts
