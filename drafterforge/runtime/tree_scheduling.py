"""A scheduler at work in a pool: it chooses trees before they are drafted, or ends them level by level.

Axes: B rows, W draft vocabulary, H hidden of the target, V its vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.pool_members import PoolMembers
from drafterforge.runtime.row_selection import PoolRow
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.observation import CHILDREN, Observation, best_children, text_state
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape


class TreeScheduling:
    """The trees of rows whose drafters a pool's scheduler serves."""

    def __init__(self, pool: Pool, members: PoolMembers) -> None:
        self.pool, self.members = pool, members

    def choose(self, rows: Sequence[PoolRow], record: CycleRecord) -> None:
        """Ask the scheduler for the trees of rows whose last choice no longer stands."""
        scheduler = self.pool.scheduler
        if scheduler is None:
            return
        for name in dict.fromkeys(row.choice for row in rows):
            places = [place for place, row in enumerate(rows) if row.choice == name and row.kept == 0]
            if not places or not self.pool.scheduled(name):
                continue
            guesses, asking = self.members.guesses(name, places), [rows[place] for place in places]
            began = time.perf_counter()
            embedding = self.members.drafters[name].embedding
            shapes = scheduler.choose(observation_of(guesses, asking, scheduler, embedding))
            for row, shape in zip(asking, shapes, strict=True):
                row.scheduled, row.kept = shape, scheduler.every
            record.charge("schedule", began)
        for row in rows:
            row.kept = max(row.kept - 1, 0)

    def draft(
        self, name: str, places: list[int], rows: Sequence[PoolRow], shape: TreeShape, record: CycleRecord
    ) -> Tree | None:
        """Trees of some rows, which the scheduler may end early; None: it does not serve them."""
        if not self.pool.scheduled(name):
            return None
        root = record.root[places]
        lengths = torch.tensor([rows[place].position - 1 for place in places], device=root.device)
        growth = self.pool.scheduler.growth(lengths)
        if growth is None:
            return None
        timed = TimedGrowth(growth)
        tree = self.members.draft(name, places, root, shape, timed)
        record.seconds["schedule"] += timed.seconds
        for place, depth, count in zip(places, timed.depths.tolist(), timed.counts.tolist(), strict=True):
            rows[place].shape = TreeShape(count, depth, shape.top_k)
        return tree


class TimedGrowth:
    """Decisions on trees that are being drafted, their seconds, and what became of the trees."""

    def __init__(self, growth: Growth) -> None:
        self.growth, self.seconds = growth, 0.0

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`."""
        began = time.perf_counter()
        going = self.growth.go_on(level, scores)
        self.seconds += time.perf_counter() - began
        return going

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        began = time.perf_counter()
        self.depths, self.counts = depths, self.growth.nodes(depths, scores)
        self.seconds += time.perf_counter() - began
        return self.counts


def observation_of(guesses: Tensor, rows: Sequence[PoolRow], scheduler: Scheduler, embedding: Tensor) -> Observation:
    """What a scheduler sees of rows; guesses: logits of their roots' children, [B, W]; embedding: [V, H]."""
    features = torch.stack([row.feature for row in rows]) if scheduler.reads_features else None
    texts = torch.stack([text_state(row.text, embedding) for row in rows]) if scheduler.reads_text else None
    lengths = torch.tensor([row.position - 1 for row in rows], device=guesses.device)
    children = best_children(guesses, CHILDREN) if scheduler.reads_children else None
    return Observation(features, children, lengths, texts)
