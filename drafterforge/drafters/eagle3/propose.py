"""Drafting with an EAGLE-3 drafter; its cache is a function of the committed text and the target's features.

Axes: B rows, A committed tokens, K beam nodes, L level slots, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.model import Attend
from drafterforge.drafters.proposer import PromptReader, SoloProposer
from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.tree.expand import Growth, Step, expand
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.masks import level_mask
from drafterforge.tree.merge import RetrievalEvidence


class Eagle3Reader(PromptReader):
    """Reads a prompt into a separate row, which then joins the other rows."""

    def __init__(self, drafter: FusedDrafter) -> None:
        self.row = Eagle3Proposer(drafter)
        self.row.cache, self.row.stable = new_draft_cache(drafter, 1), [0]

    def read(self, text: Tensor, features: Tensor) -> None:
        self.row.read(text[None, -len(features) :], features[None], [len(features)])


class Eagle3Proposer(SoloProposer):
    """The cache holds [stable slots | slots of this cycle's levels]; stable slots were made from target features.

    Level slots begin after the longest row and are shared by all rows: a row never reads slots between its own stable
    ones and the level slots.
    """

    def __init__(self, drafter: FusedDrafter) -> None:
        self.drafter = drafter
        self.cache = new_draft_cache(drafter, 0)
        self.stable: list[int] = []  # stable slots of each row
        self.last = drafter.embedding.new_empty(0, drafter.embedding.shape[1])  # output of the newest of them, [B, H]

    def admit(self, text: Tensor, features: Tensor) -> None:
        reader = self.prompt_reader()
        reader.read(text, features)
        self.join_row(reader, text, features)

    def prompt_reader(self) -> Eagle3Reader:
        return Eagle3Reader(self.drafter)

    def join_row(self, reader: Eagle3Reader, text: Tensor, features: Tensor) -> None:
        row = reader.row
        if self.stable:
            self.cache.put_rows(row.cache, [])
        else:
            self.cache = row.cache
        self.stable += row.stable
        self.last = torch.cat((self.last, row.last))

    def keep(self, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.long, device=self.last.device)
        self.cache.keep_rows(index)
        self.stable, self.last = [self.stable[row] for row in rows], self.last[index]

    def read(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        """See `SoloProposer`; appends stable slots."""
        if tokens.shape[0] == 1:  # no padding, no mask
            start, width = self.stable[0], tokens.shape[1]
            self.cache.set_slots(start, width)
            self.last = self.drafter.layer(
                self.drafter.embed(tokens[0]),
                self.drafter.fuse(features[0]),
                start + torch.arange(width, device=tokens.device),
                attend_to(self.cache, 1, None),
                rows=slice(width - 1, width),  # drafting needs the newest slot only, which reads all slots
            )
        else:
            stable, added = (torch.tensor(part, device=tokens.device) for part in (self.stable, counts))
            used = max(self.stable) + tokens.shape[1]
            self.last = append_slots(self.drafter, self.cache, tokens, features, stable, added, used)
        self.stable = [stable + count for stable, count in zip(self.stable, counts, strict=True)]

    def draft_trees(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B], the tokens of the newest stable slots."""
        stable = torch.tensor(self.stable, device=root.device)
        return draft_levels(self.drafter, self.cache, self.last, root, stable, max(self.stable), shape)


def new_draft_cache(drafter: FusedDrafter, batch: int) -> KeyValueCache:
    """An empty cache of the drafter's one layer."""
    spec, embedding = drafter.spec, drafter.embedding
    return KeyValueCache(1, batch, spec.num_key_heads, spec.head_dim, embedding.dtype, embedding.device)


def attend_to(cache: KeyValueCache, batch: int, mask: Tensor | None) -> Attend:
    """Attention of flattened rows over a one-layer cache; it writes their keys and values first."""
    kernels = kernels_of(cache.data)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.write(0, k.unflatten(0, (batch, -1)), v.unflatten(0, (batch, -1)))
        return kernels.grouped_attention(q.unflatten(0, (batch, -1)), keys, values, mask).flatten(0, 1)

    return attend


def append_slots(
    drafter: FusedDrafter,
    cache: KeyValueCache,
    tokens: Tensor,
    features: Tensor,
    stable: Tensor,
    counts: Tensor,
    used: int,
) -> Tensor:
    """Append counts [B] of tokens [B, A] after the `stable` [B] slots; returns the newest slots' outputs, [B, H].

    features: [B, A, 3H].  used: number of cache slots to read, at least max(stable) + A.
    """
    batch, width = tokens.shape
    slots = stable[:, None] + torch.arange(width, device=tokens.device)
    cache.set_ragged_slots(slots, used)
    rows = torch.arange(batch, device=tokens.device) * width + counts - 1
    allowed = torch.arange(used, device=tokens.device) < (stable + counts)[:, None]
    attend = attend_to(cache, batch, additive(allowed, features.dtype)[:, None])
    embedded, fused = drafter.embed(tokens.flatten()), drafter.fuse(features.flatten(0, 1))
    return drafter.layer(embedded, fused, slots.flatten(), attend, rows=rows)


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
    retrieval: RetrievalEvidence | None = None,
) -> Tree:
    """Trees below the roots [B] from the outputs `last` [B, H]; level slots begin at `base`.

    logits: of `last`, [B, W]; None: computed.  growth, retrieval: as for `expand`.
    """
    logits = drafter.logits(last) if logits is None else logits
    return expand(
        root, logits, shape, level_step(drafter, cache, last, stable, base), drafter.token_ids, growth, retrieval
    )


def level_step(drafter: FusedDrafter, cache: KeyValueCache, last: Tensor, stable: Tensor, base: int) -> Step:
    """The `Step` that scores the children of each level's nodes; arguments as for `draft_levels`."""
    batch = last.shape[0]
    hidden = last[:, None]

    def step(level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
        nonlocal hidden
        count = tokens.shape[1]
        hidden = hidden.gather(1, origin[:, :, None].expand(-1, -1, hidden.shape[2])).flatten(0, 1)
        cache.set_slots(base + reads.shape[2] - count, count)
        mask = level_mask(reads, stable, base, hidden.dtype)
        positions = (stable + level - 1)[:, None].expand(-1, count).flatten()
        hidden = drafter.layer(drafter.embed(tokens.flatten()), hidden, positions, attend_to(cache, batch, mask))
        scores = drafter.logits(hidden).unflatten(0, (batch, count))
        hidden = hidden.unflatten(0, (batch, count))
        return scores

    return step
