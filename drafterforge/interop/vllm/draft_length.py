"""How many tokens drafters draft for a batch, by measured seconds: none where plain decoding is faster.

A cycle that drafts d tokens takes t(B, d) seconds in a batch of B requests.  Some requests verify a chain that was
looked up, at any d.  A request emits 1 + T + (1 - s)(S_1 + ... + S_d) tokens: s is the share of requests with such a
chain and T the mean number of its accepted tokens over all requests, measured apart for d = 0, where a looked-up chain
competes with none; S_j is the share of drafted chains whose first j tokens are accepted.  The length with the most
tokens a second is taken; others are tried again ever more rarely.
Axes: B requests, K most drafted tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

RECENT = 16  # cycles whose seconds count
FIRST_TRIALS = 3  # cycles of a length before it can be judged
RATE = 0.02  # least weight of a cycle in the means
PRIOR_CYCLES = 4  # that the initial shares count as
RETRY, LONGEST_RETRY = 64, 4096  # cycles until a length is tried again: at first, and at most


@dataclass
class LookupMeans:
    """Means over cycles of chains that were looked up, see the module."""

    share: float = 0.0  # s
    tokens: float = 0.0  # T
    cycles: int = 0

    def observe(self, share: float, tokens: float) -> None:
        """Learn from a cycle."""
        self.cycles += 1
        weight = max(RATE, 1 / self.cycles)
        self.share += weight * (share - self.share)
        self.tokens += weight * (tokens - self.tokens)


class DraftLength:
    """The length of the next cycle of a batch."""

    def __init__(self, most: int) -> None:
        """most: K."""
        self.lengths = (0, most) if most < 2 else (0, 1, most)
        self.shares = [0.7**level for level in range(1, most + 1)]  # until measured
        self.cycles = [PRIOR_CYCLES] * most  # that each share is the mean of
        self.lookups = {False: LookupMeans(), True: LookupMeans()}  # where nothing is drafted, and where something is
        self.seconds: dict[tuple[int, int], deque[float]] = {}  # by batch size and length
        self.waiting: dict[tuple[int, int], int] = {}  # cycles until a length is tried again
        self.patience: dict[tuple[int, int], int] = {}  # how many that were the last time

    def observe(self, length: int, seconds: float, drafted: Sequence[int], looked_up: Sequence[int]) -> None:
        """Learn from a cycle.

        drafted, looked_up: accepted tokens of each request whose chain a drafter of the model drafted, or none, and of
        each whose chain was looked up.
        """
        batch = len(drafted) + len(looked_up)
        self.seconds.setdefault((batch, length), deque(maxlen=RECENT)).append(seconds)
        self.lookups[length > 0].observe(len(looked_up) / batch, sum(looked_up) / batch)
        for level in range(length if drafted else 0):
            self.cycles[level] += 1
            share = fmean(count > level for count in drafted)
            self.shares[level] += max(RATE, 1 / self.cycles[level]) * (share - self.shares[level])

    def choose(self, batch: int) -> int:
        """The number of tokens to draft for a batch of this size."""
        complete = [size for size in {size for size, _ in self.seconds} if self._timed(size) == list(self.lengths)]
        near = min(complete, key=lambda size: (abs(size - batch), size), default=None)
        timed = self._timed(batch)
        if near is None:
            return next(length for length in reversed(self.lengths) if length not in timed)
        if not timed:  # as in the batch size that is most alike, until there are seconds to compare with
            return max(self.lengths, key=lambda length: self.rate(near, length))
        scale = self._mean(near, timed[-1]) / self._mean(batch, timed[-1])
        rates = {length: self.rate(near, length) * scale for length in self.lengths}
        rates |= {length: self.rate(batch, length) for length in timed}
        best = max(rates, key=rates.__getitem__)
        for length in self.lengths:
            if length != best and self._is_due(batch, length):
                return length
        return best

    def rate(self, batch: int, length: int) -> float:
        """Expected tokens a second of a request."""
        lookups = self.lookups[length > 0]
        tokens = 1.0 + lookups.tokens + (1.0 - lookups.share) * sum(self.shares[:length])
        return tokens / self._mean(batch, length)

    def _mean(self, batch: int, length: int) -> float:
        """Mean seconds of recent cycles without the slowest, which another program may have held up."""
        return fmean(sorted(self.seconds[batch, length])[:-1])

    def _timed(self, batch: int) -> list[int]:
        """The lengths whose seconds in batches of this size are known."""
        return [length for length in self.lengths if len(self.seconds.get((batch, length), ())) >= FIRST_TRIALS]

    def _is_due(self, batch: int, length: int) -> bool:
        """Whether to try a length again that looks worse."""
        key = batch, length
        self.waiting[key] = self.waiting.get(key, RETRY) - 1
        if self.waiting[key] > 0:
            return False
        self.patience[key] = min(2 * self.patience.get(key, RETRY), LONGEST_RETRY)
        self.waiting[key] = self.patience[key]
        return True
