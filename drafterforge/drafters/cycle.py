"""The record of one decoding cycle, which its steps hand on to each other.

Axes: B rows, T tree nodes, D drafted levels, A committed tokens, V vocabulary, H hidden of the target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from drafterforge.tree.grow import Tree, TreeShape

STEPS = ("draft", "verify", "select", "schedule", "host", "refresh")


@dataclass
class CycleRecord:
    """One cycle of all rows.  Plan, draft, verify, commit and refresh fill it in, in this order."""

    root: Tensor  # last committed token of each row, [B]
    limits: Sequence[int]  # levels that could count in each row
    shape: TreeShape  # of the trees that the caller asks for

    bounds: TreeShape | None = None  # plan: the largest of every number of the rows' trees
    shapes: Sequence[TreeShape] = ()  # plan: each row's tree; draft: as it became, if a scheduler ended it early
    drafters: Sequence[str] = ()  # plan: who drafts each row's tree; empty names without a pool

    tree: Tree | None = None  # draft

    logits: Tensor | None = None  # verify: the target's after each node, [B, T, V]
    features: Tensor | None = None  # verify: the target's at each node, [B, T, 3H]
    path: Tensor | None = None  # verify: nodes of the accepted walks, [B, D + 1]
    next_tokens: Tensor | None = None  # verify: the token after each of them, [B, D + 1]
    distribution: Callable[[Tensor], Tensor] | None = None  # verify: of logits [B, V]; None if every row is greedy
    packed: Tensor | None = None  # verify: what the host is to know of it, see `runtime.acceptance`

    sizes: Sequence[int] = ()  # commit: nodes of each row's tree
    counts: Sequence[int] = ()  # commit: tokens that each row accepted, bonus included
    emitted: Sequence[Sequence[int]] = ()  # commit: those of them that belong to the answers

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))

    def plan_uniform(self, shape: TreeShape) -> None:
        """One tree shape for every row, and one drafter."""
        rows = len(self.limits)
        self.bounds, self.shapes, self.drafters = shape, [shape] * rows, [""] * rows

    def charge(self, step: str, since: float) -> None:
        """Add the seconds since then to a step."""
        self.seconds[step] += time.perf_counter() - since

    def committed(self) -> tuple[Tensor, Tensor]:
        """Committed tokens [B, A], of which each row has its count, and the features before them, [B, A, 3H]."""
        width = max(self.counts)
        path = self.path[:, :width, None].expand(-1, -1, self.features.shape[2])
        return self.next_tokens[:, :width], self.features.gather(1, path)
