"""Packed batches: sequences laid end to end up to a token budget.

The batch of step s is a function of (data, seed, s), so a resumed run reads what an uninterrupted one would have.
Of several ranks, each packs every num_ranks-th batch, so together they read what one process reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from drafterforge.drafters.eagle3.train.ttt import PackedBatch


class Sequenced(Protocol):
    """A tokenised conversation."""

    input_ids: Sequence[int]
    loss_mask: Sequence[int]


class Capture(Protocol):
    """The target's features, final states and most likely next tokens of a sequence."""

    features: Tensor
    states: Tensor
    argmax: Tensor


def plan_batches(lengths: list[int], budget: int, generator: torch.Generator | None) -> list[list[int]]:
    """Row indices of each batch of one epoch; shuffled with `generator`, in order without."""
    count = len(lengths)
    order = list(range(count)) if generator is None else torch.randperm(count, generator=generator).tolist()
    batches: list[list[int]] = []
    room = 0
    for index in order:
        if not batches or lengths[index] > room:
            batches.append([])
            room = budget
        batches[-1].append(index)
        room -= lengths[index]
    return batches


class PackedData(IterableDataset):
    """Endless training batches, or one epoch in order when `seed` is None."""

    def __init__(
        self,
        rows: Sequence[Sequenced],
        capture: Callable[[list[int]], list[Capture]],
        tokens_per_batch: int,
        seed: int | None = None,
        first_batch: Callable[[], int] = lambda: 0,
    ) -> None:
        """capture: the target's captures of rows, by their indices.  first_batch: called when iteration starts."""
        super().__init__()
        self.rows, self.capture, self.budget = rows, capture, tokens_per_batch
        self.seed, self.first_batch = seed, first_batch
        self.rank, self.num_ranks = 0, 1
        self.lengths = [len(row.input_ids) for row in rows]

    def plan(self, epoch: int) -> list[list[int]]:
        """Row indices of each batch of an epoch."""
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return plan_batches(self.lengths, self.budget, generator)

    def __iter__(self) -> Iterator[PackedBatch]:
        skip, epoch = self.first_batch(), 0
        turns = itertools.cycle(range(self.num_ranks))
        while True:
            plan = self.plan(epoch)
            for indices, turn in zip(plan[skip:], turns, strict=False):
                if turn == self.rank:
                    yield self.pack(indices)
            skip, epoch = max(0, skip - len(plan)), epoch + 1
            if self.seed is None:
                if self.rank >= (len(plan) % self.num_ranks or self.num_ranks):
                    yield self.pack(plan[0]).without_answers()  # all ranks run equally many batches
                return

    def pack(self, indices: list[int]) -> PackedBatch:
        """Lay the given rows end to end."""
        rows = [self.rows[i] for i in indices]
        captures = self.capture(indices)
        lengths = [self.lengths[i] for i in indices]
        return PackedBatch(
            tokens=torch.cat([torch.as_tensor(row.input_ids, dtype=torch.long) for row in rows]),
            positions=torch.cat([torch.arange(length) for length in lengths]),
            loss_mask=torch.cat([torch.as_tensor(row.loss_mask, dtype=torch.bool) for row in rows]),
            lengths=lengths,
            features=torch.cat([capture.features for capture in captures]).clone(),
            states=torch.cat([capture.states for capture in captures]).clone(),
            argmax=torch.cat([capture.argmax for capture in captures]).clone(),
        )
