"""The interface of schedulers, which choose the tree of every row's cycle; they never change the output.

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
    """Chooses tree shapes before a cycle, and may end trees while they are drafted."""

    name = "scheduler"
    hold_cycles = 1  # cycles for which a choice is kept
    reads_children = True  # whether it observes the drafter's log-probabilities of the next token
    reads_features = False  # whether it observes the target's features
    reads_text = False  # whether it observes the embeddings of the last tokens
    grows = False  # whether it decides on a tree while it is drafted, see `growth`
    stochastic = False  # whether it samples its choices, so that a replay cannot repeat live cycles one by one
    depth: int  # of its deepest tree

    @abstractmethod
    def choose(self, observation: Observation) -> list[TreeShape]:
        """The shape of each row's next cycle."""

    @abstractmethod
    def largest_shapes(self) -> Sequence[TreeShape]:
        """The trees that it may ask for, or the largest of them."""

    def replayed_shapes(self) -> Sequence[TreeShape] | None:
        """As `largest_shapes`; None: recorded answers cannot replay it."""
        return self.largest_shapes()

    def growth(self, lengths: Tensor) -> Growth | None:
        """Decisions while rows with roots at positions `lengths` [B] draft; None: the chosen shapes are drafted."""
        return None


class StaticScheduler(Scheduler):
    """Always one shape."""

    name = "static"
    reads_children = False

    def __init__(self, shape: TreeShape) -> None:
        self.shape, self.depth = shape, shape.depth

    def largest_shapes(self) -> Sequence[TreeShape]:
        """The shape."""
        return [self.shape]

    def choose(self, observation: Observation) -> list[TreeShape]:
        """The shape."""
        return [self.shape] * observation.rows


class RandomScheduler(Scheduler):
    """Random actions of a grid, each once before any comes again; used to measure the cost of cycles."""

    name = "random"
    reads_children = False

    def __init__(self, grid: ActionGrid, seed: int = 0) -> None:
        self.grid, self.depth = grid, max(grid.depths)
        self.rng, self.deck = np.random.default_rng(seed), []

    def largest_shapes(self) -> Sequence[TreeShape]:
        """All shapes of the grid."""
        return self.grid.shapes

    def replayed_shapes(self) -> None:
        """None: its choices are random."""

    def choose(self, observation: Observation) -> list[TreeShape]:
        """The next shapes of the shuffled grid."""
        while len(self.deck) < observation.rows:
            self.deck += self.rng.permutation(len(self.grid)).tolist()
        drawn, self.deck = self.deck[: observation.rows], self.deck[observation.rows :]
        return [self.grid.shapes[action] for action in drawn]


class PlannedScheduler(Scheduler):
    """A list of shapes, cycle by cycle, for one request at a time."""

    name = "planned"
    reads_children = False

    def __init__(self, shapes: Sequence[TreeShape]) -> None:
        self.shapes, self.depth = list(shapes), max(shape.depth for shape in shapes)
        self.cycles = 0

    def largest_shapes(self) -> Sequence[TreeShape]:
        """All shapes of the list."""
        return self.shapes

    def replayed_shapes(self) -> None:
        """None: its choices are those of a single request."""

    def choose(self, observation: Observation) -> list[TreeShape]:
        """The next shape; after the end of the list the last one."""
        self.cycles += 1
        return [self.shapes[min(self.cycles, len(self.shapes)) - 1]] * observation.rows
