"""Tree scheduling in a pool: a scheduler chooses trees before they are drafted, or ends them level by level.

Axes: B rows, W draft vocabulary, H hidden of the target, V its vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.kernels import gpu
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.pool_members import PoolMembers
from drafterforge.runtime.row_selection import PoolRow
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.observation import Observation, text_state
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape


class TreeScheduling:
    """Applies a pool's scheduler to the rows whose drafters it serves."""

    def __init__(self, pool: Pool, members: PoolMembers) -> None:
        self.pool, self.members = pool, members

    def choose(self, rows: Sequence[PoolRow], record: CycleRecord) -> None:
        """Let the scheduler choose trees for rows whose last choice has been kept long enough."""
        scheduler = self.pool.scheduler
        if scheduler is None:
            return
        for name in dict.fromkeys(row.choice for row in rows):
            due = [index for index, row in enumerate(rows) if row.choice == name and row.hold_cycles == 0]
            if not due or not self.pool.scheduled(name):
                continue
            children = self.members.children(name, due) if scheduler.reads_children else None
            due_rows = [rows[index] for index in due]
            gpu.synchronize((due_rows[0].feature if children is None else children).device)
            began = time.perf_counter()
            embedding = self.members.embedding(name) if scheduler.reads_text else None
            shapes = scheduler.choose(observation_of(children, due_rows, scheduler, embedding))
            for row, shape in zip(due_rows, shapes, strict=True):
                row.scheduled, row.hold_cycles = shape, scheduler.hold_cycles
            record.charge("schedule", began)
        for row in rows:
            row.hold_cycles = max(row.hold_cycles - 1, 0)

    def draft(
        self,
        name: str,
        indices: list[int],
        rows: Sequence[PoolRow],
        shape: TreeShape,
        record: CycleRecord,
        proposals: bool,
    ) -> Tree | None:
        """Trees of some rows, which the scheduler may end early; None if it does not serve the drafter.

        proposals: with `Tree.proposals`.
        """
        if not self.pool.scheduled(name):
            return None
        root = record.root[indices]
        lengths = torch.tensor([rows[index].position - 1 for index in indices], device=root.device)
        growth = self.pool.scheduler.growth(lengths)
        if growth is None:
            return None
        timed = TimedGrowth(growth)
        tree = self.members.draft(name, indices, root, shape, timed, proposals)
        record.seconds["schedule"] += timed.seconds
        for index, depth, count in zip(indices, timed.depths.tolist(), timed.counts.tolist(), strict=True):
            rows[index].shape = TreeShape(count, depth, shape.top_k)
        return tree


class TimedGrowth:
    """A `Growth` that measures its seconds and records the depths and sizes of the trees.

    It waits for the device first, because a decision reads scores that are still being computed there.
    """

    def __init__(self, growth: Growth) -> None:
        self.growth, self.seconds = growth, 0.0

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`."""
        gpu.synchronize(scores.device)
        began = time.perf_counter()
        going = self.growth.go_on(level, scores)
        self.seconds += time.perf_counter() - began
        return going

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        gpu.synchronize(scores.device)
        began = time.perf_counter()
        self.depths, self.counts = depths, self.growth.nodes(depths, scores)
        self.seconds += time.perf_counter() - began
        return self.counts


def observation_of(
    children: Tensor | None, rows: Sequence[PoolRow], scheduler: Scheduler, embedding: Tensor | None
) -> Observation:
    """What a scheduler observes of rows.  children: see `Observation`.  embedding: of the target, [V, H], if it reads
    texts.
    """
    features = torch.stack([row.feature for row in rows]) if scheduler.reads_features else None
    texts = torch.stack([text_state(row.text, embedding) for row in rows]) if scheduler.reads_text else None
    device = rows[0].feature.device if children is None else children.device
    lengths = torch.tensor([row.position - 1 for row in rows], device=device)
    return Observation(features, children, lengths, texts)
