"""Rows that a pool's drafters read on a CPU.

A row holds a position's features of the target and the token after it.  Rejected rows are left out.  Rows of cycles
that draft nothing are deferred: they are read together before the next cycle that drafts.  Rows of a request that ends
first are never read, so vLLM's prefix cache lacks the drafters' keys for them.
Axes: R rows, B requests, H hidden of the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Rows:
    """Rows of requests, one request after the other."""

    tokens: Tensor  # the token after each row's position, [R]
    positions: Tensor  # [R]
    features: Tensor  # [R, 3H]
    counts: Tensor  # rows of each request, [B]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def ends(self) -> Tensor:
        """The newest row of each request, [B]."""
        return self.counts.cumsum(0) - 1

    @property
    def starts(self) -> Tensor:
        """The first row of each request, [B]."""
        return self.ends + 1 - self.counts

    def part(self, rows: Tensor, counts: Tensor) -> Rows:
        """The rows at indices `rows`, of which each request has `counts` [B]."""
        return Rows(self.tokens[rows], self.positions[rows], self.features[rows], counts)

    def until(self, ends: Tensor) -> Rows:
        """Each request's rows until row ends [B], included."""
        counts = ends + 1 - self.starts
        if torch.equal(counts, self.counts):
            return self
        rows = torch.arange(len(self))
        return self.part(rows[rows <= ends.repeat_interleave(self.counts)], counts)

    def newest(self, most: int) -> Rows:
        """At most this many of each request's newest rows."""
        counts = self.counts.clamp(max=most)
        rows = torch.arange(len(self))
        return self.part(rows[rows + most > self.ends.repeat_interleave(self.counts)], counts)

    def cache_slots(self, tables: Tensor, block_size: int) -> Tensor:
        """Where each row's keys stand in a KV cache, [R].  tables: blocks of each request, [B, M]."""
        owners = torch.arange(len(self.counts)).repeat_interleave(self.counts)
        return tables[owners, self.positions // block_size].long() * block_size + self.positions % block_size

    def metadata(self, batch: Any, block_size: int) -> Any:
        """Attention metadata for these rows.  batch: vLLM's metadata of the same requests."""
        bounds = torch.cat((self.counts.new_zeros(1), self.counts.cumsum(0))).int()
        lengths = (self.positions[self.ends] + 1).int()
        return type(batch)(
            query_start_loc=bounds,
            query_start_loc_cpu=bounds.clone(),
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths.clone(),
            num_reqs=len(self.counts),
            num_actual_tokens=len(self),
            max_query_len=int(self.counts.max()),
            max_seq_len=int(lengths.max()),
            block_table_tensor=batch.block_table_tensor,
            slot_mapping=self.cache_slots(batch.block_table_tensor, block_size),
        )


class DeferredRows:
    """Deferred rows of the requests in S slots."""

    def __init__(self, num_slots: int, max_rows: int) -> None:
        """num_slots: S."""
        self.max_rows, self.num_rows = max_rows, 0
        self.slots: list[Tensor] = []  # of the rows of each part, the oldest part first
        self.parts: list[Rows] = []
        self.requests = torch.full((num_slots,), -1)  # index in the batch of each slot's request; -1 outside `take`

    def has_room(self, rows: Rows) -> bool:
        """Whether these rows can be kept too."""
        return self.num_rows + len(rows) <= self.max_rows

    def defer(self, slots: Tensor, rows: Rows) -> None:
        """Keep a copy of the rows of requests in slots [B]."""
        copies = (x.clone() for x in (rows.tokens, rows.positions, rows.features, rows.counts))
        self._keep(slots.repeat_interleave(rows.counts), Rows(*copies))

    def forget(self, slots: Tensor) -> None:
        """Drop the rows of requests in slots [B]."""
        if self.num_rows:
            owners, rows = self._all()
            self._restore(owners, rows, ~torch.isin(owners, slots))

    def take(self, slots: Tensor, positions: Tensor) -> Rows | None:
        """Take the rows of a batch; None: there are none.

        slots: of the batch, [B].  positions: where each request goes on, [B]; rows from there on are dropped, because
        vLLM reads the text of a request that it interrupted again.
        """
        if not self.num_rows:
            return None
        owners, rows = self._all()
        self.requests[slots] = torch.arange(len(slots))
        requests = self.requests[owners]
        self.requests[slots] = -1
        self._restore(owners, rows, requests < 0)
        order = requests.argsort(stable=True)
        order = order[requests[order] >= 0]
        order = order[rows.positions[order] < positions[requests[order]]]
        return rows.part(order, requests[order].bincount(minlength=len(slots)))

    def _all(self) -> tuple[Tensor, Rows]:
        """All rows and their slots."""
        names = "tokens", "positions", "features", "counts"
        joined = (torch.cat([getattr(part, name) for part in self.parts]) for name in names)
        return torch.cat(self.slots), Rows(*joined)

    def _restore(self, slots: Tensor, rows: Rows, which: Tensor) -> None:
        """Keep only some of all rows.  which: mask, [R]."""
        self.slots, self.parts, self.num_rows = [], [], 0
        if which.any():
            self._keep(slots[which], rows.part(which.nonzero()[:, 0], which.sum()[None]))

    def _keep(self, slots: Tensor, rows: Rows) -> None:
        self.slots.append(slots)
        self.parts.append(rows)
        self.num_rows += len(rows)
