"""What cycles committed that not all drafters of a pool have read: one pass later reads it, and judges them by it.

Axes: B rows, A committed tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafterforge.drafters.judging import Truth

MAX_DEFERRED = 1024  # maximum number of cycles a pass that judges nobody may be deferred


@dataclass(frozen=True)
class CommittedCycle:
    """What one cycle committed."""

    tokens: Tensor  # [B, A]
    distributions: Tensor | None  # [B, A, V] the target's, None if every row is greedy or nobody is judged
    counts: list[int]  # of the tokens, for each row
    judged: bool  # whether a selector asked for evaluations

    def keep(self, rows: list[int]) -> CommittedCycle:
        """Of some rows."""
        distributions = None if self.distributions is None else self.distributions[rows]
        return CommittedCycle(self.tokens[rows], distributions, [self.counts[row] for row in rows], self.judged)


class UnreadCycles:
    """Committed cycles since all drafters last read."""

    def __init__(self) -> None:
        self.cycles: list[CommittedCycle] = []

    def __bool__(self) -> bool:
        return bool(self.cycles)

    def add(self, cycle: CommittedCycle) -> None:
        """One more."""
        self.cycles.append(cycle)

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        self.cycles = [cycle.keep(rows) for cycle in self.cycles] if rows else []

    def clear(self) -> None:
        """All drafters have read."""
        self.cycles = []

    def is_due(self, read_interval: int) -> bool:
        """Whether all drafters are to read now.  read_interval: cycles between passes that judge drafters."""
        return len(self.cycles) >= (read_interval if self.cycles[-1].judged else MAX_DEFERRED)

    def counts(self) -> list[int]:
        """Tokens of each row."""
        return [sum(counts) for counts in zip(*(cycle.counts for cycle in self.cycles), strict=True)]

    def truth(self) -> Truth | None:
        """Tokens, and distributions where any row samples, row by row and padded; None if not all are to be judged."""
        if not all(cycle.judged for cycle in self.cycles):
            return None
        tokens = self._side_by_side([cycle.tokens for cycle in self.cycles])
        distributions = [cycle.distributions for cycle in self.cycles]
        greedy = any(part is None for part in distributions)
        return Truth(tokens, None if greedy else self._side_by_side(distributions))

    def _side_by_side(self, parts: Sequence[Tensor]) -> Tensor:
        """Parts [B, A, ...] of which each row has its cycle's count, as one [B, sum A, ...]."""
        if len(parts) == 1:
            return parts[0]
        rows = [
            torch.cat([part[row, : cycle.counts[row]] for part, cycle in zip(parts, self.cycles, strict=True)])
            for row in range(len(self.cycles[0].counts))
        ]
        return pad_sequence(rows, batch_first=True)
