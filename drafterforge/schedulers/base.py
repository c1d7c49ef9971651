"""Schedulers at work: they choose the tree of every row's cycle; the output does not depend on them.

Axes: B rows, S candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.observation import Observation
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import TreeShape


class Scheduler(ABC):
    """Chooses tree shapes before a cycle, and may decide on while it drafts."""

    name = "scheduler"
    every = 1  # cycles for which a choice is kept
    reads_children = True  # whether it sees what the drafter makes of the next token
    reads_features = False  # the target's
    reads_text = False  # whether it sees what the last tokens say
    grows = False  # whether it decides on a tree while it is drafted, see `growth`
    stochastic = False  # whether it samples its choices, so that a replay cannot repeat live cycles one by one
    depth: int  # deepest tree it asks for

    @abstractmethod
    def choose(self, seen: Observation) -> list[TreeShape]:
        """Shapes of the rows' next cycles."""

    def replayed_shapes(self) -> Sequence[TreeShape] | None:
        """The trees it may ask for, or the largest of them; None: recorded answers cannot replay it."""
        return None

    def growth(self, lengths: Tensor) -> Growth | None:
        """Decisions while rows with roots at these positions [B] draft; None: the shapes stand."""
        return None


class StaticScheduler(Scheduler):
    """Always one shape."""

    name = "static"
    reads_children = False

    def __init__(self, shape: TreeShape) -> None:
        self.shape, self.depth = shape, shape.depth

    def replayed_shapes(self) -> Sequence[TreeShape]:
        """The shape."""
        return [self.shape]

    def choose(self, seen: Observation) -> list[TreeShape]:
        """The shape."""
        return [self.shape] * seen.rows


class RandomScheduler(Scheduler):
    """Any action of a grid, none again before all have had their turn: to measure what cycles cost."""

    name = "random"
    reads_children = False

    def __init__(self, grid: ActionGrid, seed: int = 0) -> None:
        self.grid, self.depth = grid, max(grid.depths)
        self.rng, self.deck = np.random.default_rng(seed), []

    def choose(self, seen: Observation) -> list[TreeShape]:
        """Shapes drawn."""
        while len(self.deck) < seen.rows:
            self.deck += self.rng.permutation(len(self.grid)).tolist()
        drawn, self.deck = self.deck[: seen.rows], self.deck[seen.rows :]
        return [self.grid.shapes[place] for place in drawn]


class PlannedScheduler(Scheduler):
    """Given shapes one after the other, for one request at a time."""

    name = "planned"
    reads_children = False

    def __init__(self, shapes: Sequence[TreeShape]) -> None:
        self.shapes, self.depth = list(shapes), max(shape.depth for shape in shapes)
        self.cycles = 0

    def choose(self, seen: Observation) -> list[TreeShape]:
        """The next shape; the last one stays."""
        self.cycles += 1
        return [self.shapes[min(self.cycles, len(self.shapes)) - 1]] * seen.rows
