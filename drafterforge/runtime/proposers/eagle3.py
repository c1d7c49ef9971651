"""An EAGLE-3 drafter at work: drafts from the target's features, its cache a function of the committed text alone.

Axes: B rows, A committed tokens, K beam nodes, L level slots, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.drafter.fused import FusedDrafter
from drafterforge.kernels.attention import additive, grouped_attention
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.runtime.proposers.levels import past_and
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import Tree, TreeShape


class Eagle3Proposer:
    """The cache holds [stable | this cycle's levels]; only true features ever become stable.

    Slots of a row beyond its own stable ones are never read, so rows of different lengths share the level slots, which
    begin behind the longest row.
    """

    def __init__(self, drafter: FusedDrafter) -> None:
        self.drafter = drafter
        self.cache = self._new_cache(0)
        self.stable: list[int] = []  # stable slots of each row
        self.last = drafter.embedding.new_empty(0, drafter.embedding.shape[1])  # output of the newest of them, [B, H]

    def _new_cache(self, batch: int) -> KeyValueCache:
        spec, embedding = self.drafter.spec, self.drafter.embedding
        return KeyValueCache(1, batch, spec.num_key_heads, spec.head_dim, embedding.dtype, embedding.device)

    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row, see `Proposer`."""
        fresh = Eagle3Proposer(self.drafter)
        fresh.cache, fresh.stable = fresh._new_cache(1), [0]
        fresh.refresh(text[None, 1:], features[None], [text.numel() - 1])
        if self.stable:
            self.cache.put_rows(fresh.cache, [])
        else:
            self.cache = fresh.cache
        self.stable += fresh.stable
        self.last = torch.cat((self.last, fresh.last))

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        index = torch.tensor(rows, dtype=torch.long, device=self.last.device)
        self.cache.keep_rows(index)
        self.stable, self.last = [self.stable[row] for row in rows], self.last[index]

    def refresh(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        """Append slots that pair tokens with the target's features one position before."""
        batch, width = tokens.shape
        steps = torch.arange(width, device=tokens.device)
        if batch == 1:
            start = self.stable[0]
            positions = start + steps
            self.cache.place(start, width)
            rows, mask = slice(width - 1, width), None  # the newest slot alone is drafted from, and reads every slot
        else:
            stable = torch.tensor(self.stable, device=tokens.device)
            slots = stable[:, None] + steps
            used = max(self.stable) + width
            self.cache.place_ragged(slots, used)
            last = torch.tensor(counts, device=tokens.device) - 1
            rows = torch.arange(batch, device=tokens.device) * width + last
            allowed = torch.arange(used, device=tokens.device) <= (stable + last)[:, None]
            positions, mask = slots.flatten(), additive(allowed, features.dtype)[:, None]
        drafter = self.drafter
        self.last = drafter.layer(
            drafter.embed(tokens.flatten()),
            drafter.fuse(features.flatten(0, 1)),
            positions,
            self._attend(batch, mask),
            rows=rows,
        )
        self.stable = [stable + count for stable, count in zip(self.stable, counts, strict=True)]

    def _attend(self, batch: int, mask: Tensor | None):
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache.write(0, k.unflatten(0, (batch, -1)), v.unflatten(0, (batch, -1)))
            return grouped_attention(q.unflatten(0, (batch, -1)), keys, values, mask).flatten(0, 1)

        return attend

    def draft(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B], which are the tokens of the newest stable slots."""
        drafter, batch, base = self.drafter, root.numel(), max(self.stable)
        stable = torch.tensor(self.stable, device=root.device)[:, None]
        hidden = self.last[:, None]

        def step(level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
            nonlocal hidden
            count = tokens.shape[1]
            hidden = hidden.gather(1, origin[:, :, None].expand(-1, -1, hidden.shape[2])).flatten(0, 1)
            self.cache.place(base + reads.shape[2] - count, count)
            mask = additive(past_and(reads, stable, base), hidden.dtype)
            positions = (stable + level - 1).expand(-1, count).flatten()
            embedded = drafter.embed(tokens.flatten())
            hidden = drafter.layer(embedded, hidden, positions, self._attend(batch, mask))
            logits = drafter.logits(hidden).unflatten(0, (batch, count))
            hidden = hidden.unflatten(0, (batch, count))
            return logits

        return expand(root, drafter.logits(self.last), shape, step, drafter.token_ids)
