"""What ends a tree: which nodes are verified, which levels are drafted, whether a neural drafter runs at all.

Axes: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol


class DraftLimits(Protocol):
    """Decisions on the trees of one cycle, for drafters whose trees have no fixed shape."""

    min_probability: float  # of a node, all its ancestors accepted too; less likely nodes are left out
    prices: Sequence[float]  # accepted tokens that a tree of k nodes below the root must add, by k; empty: 0

    def uses_neural(self, row: int, expected: float, ignorance: float, num_nodes: int) -> bool:
        """Whether the neural drafter joins retrieval in a row.

        row: number among the rows drafted together.  expected: tokens that retrieval alone adds, with
        num_nodes nodes.  ignorance: weight of the drafter's distribution against retrieval's evidence, in [0, 1].
        """

    def least_reach(self, rows: Sequence[int]) -> Sequence[float]:
        """How likely the target must be to accept a node of a level, for another level to be drafted.

        rows: those in which the neural drafter runs; a probability is returned for each.
        """

    def drafted(self, num_levels: int, reaches: Sequence[Sequence[float]], clock: Sequence[float]) -> None:
        """Learn what the neural drafter did.

        reaches: how likely the target was to accept a node of each level but the last, [levels - 1][rows].  clock: when
        each level was drafted, in seconds of a monotonic clock.
        """


class FixedLimits:
    """Thresholds that do not depend on the device."""

    prices: ClassVar[Sequence[float]] = ()

    def __init__(self, min_probability: float, min_reach: float, min_retrieval_tokens: float) -> None:
        """min_retrieval_tokens: retrieval alone suffices if it is expected to add as many."""
        self.min_probability, self.min_reach = min_probability, min_reach
        self.min_retrieval_tokens = min_retrieval_tokens

    def uses_neural(self, row: int, expected: float, ignorance: float, num_nodes: int) -> bool:
        """See `DraftLimits`."""
        return expected < self.min_retrieval_tokens

    def least_reach(self, rows: Sequence[int]) -> Sequence[float]:
        """See `DraftLimits`."""
        return [self.min_reach] * len(rows)

    def drafted(self, num_levels: int, reaches: Sequence[Sequence[float]], clock: Sequence[float]) -> None:
        """See `DraftLimits`."""
