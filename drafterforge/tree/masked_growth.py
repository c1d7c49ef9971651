"""Trees of fixed capacity.  A captured graph cannot change shapes, so rows that stop early are masked.

Levels and nodes beyond a row's own are drafted and dropped again.
Axes: B rows, S candidates of a level, P candidates of all levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class LevelDecisions(Protocol):
    """The decisions of `Growth`, made on the device without waiting for it."""

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """Whether each row drafts another level, [B] bool."""

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """Nodes to verify of each row, [B]."""


@dataclass
class MaskedGrowth:
    """A `Growth` with the limits of each row; all its numbers lie on the device."""

    depths: Tensor  # levels of each row at most, [B]
    sizes: Tensor  # nodes of each row at most, root included, [B]
    widths: Tensor  # beam nodes of each row and children of each node, [B]
    decisions: LevelDecisions | None = None  # may end a row earlier
    drafted: Tensor | None = None  # levels of each row that are part of its tree, [B], once it is drafted

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`."""
        going = level < self.depths
        return going if self.decisions is None else going & self.decisions.go_on(level, scores)

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        return self.sizes if self.decisions is None else torch.minimum(self.decisions.nodes(depths, scores), self.sizes)
