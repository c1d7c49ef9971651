"""The record of one decoding cycle, passed from step to step.

Axes: B rows, T tree nodes, D drafted levels, A committed tokens, V vocabulary, H hidden of the target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafterforge.tree.grow import Tree, TreeShape

STEPS = ("draft", "verify", "select", "schedule", "host", "refresh")


@dataclass
class CycleRecord:
    """One cycle of all rows, filled in by the steps plan, draft, verify, commit and refresh in this order."""

    root: Tensor  # last committed token of each row, [B]
    limits: Sequence[int]  # largest useful depth of each row
    shape: TreeShape  # that the caller asks for
    temperatures: Sequence[float] = ()  # of each row

    bounds: TreeShape | None = None  # plan: elementwise maximum of the rows' shapes
    shapes: Sequence[TreeShape] = ()  # plan: of each row's tree; draft: the final one if a scheduler stopped early
    drafters: Sequence[str] = ()  # plan: drafter of each row; empty names without a pool

    tree: Tree | None = None  # draft

    logits: Tensor | None = None  # verify: target logits after each node, [B, T, V]
    features: Tensor | None = None  # verify: target features at each node, [B, T, 3H]
    states: Tensor | None = None  # verify: final states at each node, [B, T, H]; None: they stay on the device
    path: Tensor | None = None  # verify: accepted nodes, [B, D + 1]
    next_tokens: Tensor | None = None  # verify: the token after each of them, [B, D + 1]
    # verify: logits [B, A, V] before tokens [B, A] of the walks to probabilities; None: all greedy
    distribution: Callable[[Tensor, Tensor], Tensor] | None = None
    packed: Tensor | None = None  # verify: results that the host reads, see `runtime.acceptance`

    sizes: Sequence[int] = ()  # commit: nodes of each row's tree
    counts: Sequence[int] = ()  # commit: accept_length of each row
    emitted: Sequence[Sequence[int]] = ()  # commit: accepted tokens before a stop or length limit

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))

    def plan_uniform(self, shape: TreeShape) -> None:
        """Plan the same tree shape for all rows, without naming a drafter."""
        rows = len(self.limits)
        self.bounds, self.shapes, self.drafters = shape, [shape] * rows, [""] * rows

    def charge(self, step: str, since: float) -> None:
        """Add the seconds since `since` (of `time.perf_counter`) to a step."""
        self.seconds[step] += time.perf_counter() - since

    def distributions(self, width: int) -> Tensor | None:
        """The target's distributions at the first nodes of the walks, [B, width, V]; None if every row is greedy."""
        if self.distribution is None:
            return None
        rows = torch.arange(self.path.shape[0], device=self.path.device)[:, None]
        logits = self.logits[rows, self.path[:, :width]]
        return self.distribution(logits, self.next_tokens[:, :width])

    def committed(self) -> tuple[Tensor, Tensor]:
        """Committed tokens [B, A], padded beyond each row's count, and the features before each, [B, A, 3H]."""
        width = max(self.counts)
        path = self.path[:, :width, None].expand(-1, -1, self.features.shape[2])
        return self.next_tokens[:, :width], self.features.gather(1, path)
