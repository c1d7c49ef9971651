"""Committed tokens that not all drafters of a pool have read; one later pass reads them and evaluates the drafters.

Axes: B rows, A committed tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafterforge.drafters.judging import Truth

MAX_DEFERRED = 1024  # maximum number of cycles a pass may be deferred if no selector asks for evaluations


@dataclass(frozen=True)
class CommittedCycle:
    """The tokens that one cycle committed."""

    tokens: Tensor  # [B, A]
    distributions: Tensor | None  # [B, A, V] the target's; None if all rows are greedy or drafters are not evaluated
    counts: list[int]  # tokens of each row
    judged: bool  # whether a selector asked for evaluations

    def keep(self, rows: list[int]) -> CommittedCycle:
        """The cycle of some rows."""
        distributions = None if self.distributions is None else self.distributions[rows]
        return CommittedCycle(self.tokens[rows], distributions, [self.counts[row] for row in rows], self.judged)


class UnreadCycles:
    """Committed cycles since all drafters last read."""

    def __init__(self) -> None:
        self.cycles: list[CommittedCycle] = []

    def __bool__(self) -> bool:
        return bool(self.cycles)

    def add(self, cycle: CommittedCycle) -> None:
        """Add a cycle."""
        self.cycles.append(cycle)

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        self.cycles = [cycle.keep(rows) for cycle in self.cycles] if rows else []

    def clear(self) -> None:
        """Forget all cycles, once every drafter has read."""
        self.cycles = []

    def is_due(self, read_interval: int) -> bool:
        """Whether all drafters have to read now.  read_interval: cycles between passes that evaluate drafters."""
        return len(self.cycles) >= (read_interval if self.cycles[-1].judged else MAX_DEFERRED)

    def counts(self) -> list[int]:
        """Unread tokens of each row."""
        return [sum(counts) for counts in zip(*(cycle.counts for cycle in self.cycles), strict=True)]

    def truth(self) -> Truth | None:
        """Unread tokens, padded, and distributions if any row samples; None if a cycle needs no evaluation."""
        if not all(cycle.judged for cycle in self.cycles):
            return None
        tokens = self._concatenate([cycle.tokens for cycle in self.cycles])
        distributions = [cycle.distributions for cycle in self.cycles]
        greedy = any(part is None for part in distributions)
        return Truth(tokens, None if greedy else self._concatenate(distributions))

    def _concatenate(self, parts: Sequence[Tensor]) -> Tensor:
        """Join the cycles' parts [B, A, ...] row by row, each cut to its row's count, padded: [B, sum A, ...]."""
        if len(parts) == 1:
            return parts[0]
        rows = [
            torch.cat([part[row, : cycle.counts[row]] for part, cycle in zip(parts, self.cycles, strict=True)])
            for row in range(len(self.cycles[0].counts))
        ]
        return pad_sequence(rows, batch_first=True)
