"""Reading and drafting with one EAGLE-3 drafter over a cache of its own.

The cache holds [stable slots | slots of this cycle's levels]; stable slots were made from the target's features of the
committed text.  Level slots begin after the longest row and are shared by all rows: a row never reads slots between its
own stable ones and the level slots.

Axes: B rows, A committed tokens, K beam nodes, L level slots, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.drafters.eagle3.forward import Attend
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.row_drafters import RowDrafters
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import CandidatePool, kernels_of
from drafterforge.kernels.masks import Mask
from drafterforge.tree.branch import expand_with_proposals
from drafterforge.tree.expand import Growth, LevelSteps, ReachGrowth, expand
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.masks import level_mask, text_mask
from drafterforge.tree.merge import RetrievalEvidence
from drafterforge.tree.tries import Tries


def new_draft_cache(drafter: FusedDrafter, batch: int) -> KeyValueCache:
    """An empty cache of the drafter's one layer."""
    spec, embedding = drafter.spec, drafter.embedding
    return KeyValueCache(1, batch, spec.num_key_heads, spec.head_dim, embedding.dtype, embedding.device)


def attend_to(cache: KeyValueCache, batch: int, mask: Mask | None) -> Attend:
    """Attention of flattened rows over a one-layer cache; it writes their keys and values first."""
    kernels = kernels_of(cache.data)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.write(0, k.unflatten(0, (batch, -1)), v.unflatten(0, (batch, -1)))
        return kernels.grouped_attention(q.unflatten(0, (batch, -1)), keys, values, mask).flatten(0, 1)

    return attend


def layer_and_head(
    drafter: FusedDrafter | RowDrafters,
    cache: KeyValueCache,
    tokens: Tensor,
    hidden: Tensor,
    positions: Tensor,
    mask: Mask | None,
    origin: Tensor | None = None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [R', H] and logits [R', W] of tokens [B, T], whose keys and values are written to the cache.

    hidden: [B, K, H], of which each token reads the one of its origin [B, T]; None: its own.  positions: [B, T].
    mask: of the queries; None: one query reads all slots.  rows: indices of the R' tokens that query, as many of every
    row; None: all.
    """
    queries = tokens.shape[1] if rows is None else len(rows) // len(tokens)
    if drafter.packed is not None and drafter.packed.takes(tokens, queries, cache, mask):
        return drafter.packed(tokens, hidden, origin, positions, drafter.rope, cache, mask, rows)
    if origin is not None:
        hidden = hidden.gather(1, origin[:, :, None].expand(-1, -1, hidden.shape[2]))
    attend = attend_to(cache, len(tokens), mask)
    out = drafter.layer(drafter.embed(tokens.flatten()), hidden.flatten(0, 1), positions.flatten(), attend, rows)
    return out, drafter.logits(out)


def append_slots(
    drafter: FusedDrafter,
    cache: KeyValueCache,
    tokens: Tensor,
    features: Tensor,
    stable: Tensor,
    counts: Tensor,
    used: int,
) -> tuple[Tensor, Tensor]:
    """Append counts [B] of tokens [B, A] after the `stable` [B] slots; outputs [B, H] and logits [B, W] of the newest.

    features: [B, A, 3H].  used: number of cache slots to read, at least max(stable) + A.
    """
    batch, width = tokens.shape
    slots = stable[:, None] + torch.arange(width, device=tokens.device)
    cache.set_ragged_slots(slots, used)
    rows = torch.arange(batch, device=tokens.device) * width + counts - 1
    mask = text_mask(stable + counts, used, features.dtype)
    hidden = drafter.fuse(features.flatten(0, 1)).unflatten(0, tokens.shape)
    return layer_and_head(drafter, cache, tokens, hidden, slots, mask, rows=rows)


def draft_levels(
    drafter: FusedDrafter,
    cache: KeyValueCache,
    last: Tensor,
    root: Tensor,
    stable: Tensor,
    base: int,
    shape: TreeShape,
    logits: Tensor | None = None,
    growth: Growth | None = None,
    retrieval: RetrievalEvidence | Tries | None = None,
    proposals: bool = False,
) -> Tree:
    """Trees below the roots [B] from the outputs `last` [B, H]; level slots begin at `base`.

    logits: of `last`, [B, W]; None: computed.  growth, retrieval: as for `expand`.  proposals: with `Tree.proposals`,
    which trees with retrieval have anyway.
    """
    logits = drafter.logits(last) if logits is None else logits
    step = DrafterSteps(drafter, cache, last, stable, base)
    grow = expand_with_proposals if proposals else expand
    return grow(root, logits, shape, step, drafter.token_ids, growth, retrieval)


class DrafterSteps(LevelSteps):
    """Scores the children of each level's nodes; arguments as for `draft_levels`."""

    def __init__(self, drafter: FusedDrafter, cache: KeyValueCache, last: Tensor, stable: Tensor, base: int) -> None:
        self.drafter, self.cache, self.stable, self.base = drafter, cache, stable, base
        self.hidden = last[:, None]  # outputs of the beam before, [B, K, H]

    def __call__(self, level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
        """See `Step`."""
        count = tokens.shape[1]
        self.cache.set_slots(self.base + reads.shape[2] - count, count)
        mask = level_mask(reads, self.stable, self.base, self.hidden.dtype)
        positions = (self.stable + level - 1)[:, None].expand(-1, count)
        hidden, scores = layer_and_head(self.drafter, self.cache, tokens, self.hidden, positions, mask, origin)
        self.hidden = hidden.unflatten(0, tokens.shape)
        return scores.unflatten(0, tokens.shape)

    def draft(self, pool: CandidatePool, logits: Tensor, shape: TreeShape, growth: ReachGrowth | None) -> bool:
        """See `LevelSteps`."""
        packed, levels = self.drafter.packed, (shape.depth, shape.top_k)
        if packed is None or not packed.drafts(self.cache, pool, shape.top_k):
            return False
        least = None if growth is None else growth.least
        parts = self.hidden[:, 0], logits, self.stable, self.base, levels
        drafted = packed.draft(*parts, self.drafter.rope, self.cache, pool, least)
        if growth is not None:
            growth.num_levels, growth.reaches, growth.clock = drafted
        return True
