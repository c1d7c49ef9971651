"""How many tokens to draft for a batch, by measured seconds: down to none where plain decoding is faster.

A cycle that drafts d tokens takes t(B, d) seconds in a batch of B requests, and emits 1 + S_1 + ... + S_d tokens a
request, where S_j is the share of requests whose first j drafted tokens are accepted.  The length with the most
tokens a second is taken; lengths that look worse are tried again ever more rarely.
Axes: B requests, K most drafted tokens.
"""

from __future__ import annotations

from collections import deque
from statistics import median

RECENT = 8  # cycles whose seconds count
FIRST_TRIALS = 3  # cycles of a length before it can be judged
RATE = 0.02  # weight of a cycle in the shares
RETRY, LONGEST_RETRY = 64, 4096  # cycles until a length is tried again: at first, and at most


class DraftLength:
    """The length of the next cycle of a batch."""

    def __init__(self, most: int) -> None:
        """most: K."""
        self.most = most
        self.shares = [0.7**level for level in range(1, most + 1)]  # until measured
        self.seconds: dict[tuple[int, int], deque[float]] = {}  # by batch size and length
        self.waiting: dict[tuple[int, int], int] = {}  # cycles until a length is tried again
        self.patience: dict[tuple[int, int], int] = {}  # how many that were the last time

    def observe(self, batch: int, length: int, seconds: float, accepted: list[int]) -> None:
        """Learn from a cycle.  accepted: drafted tokens that each of its requests accepted, [B]."""
        self.seconds.setdefault((batch, length), deque(maxlen=RECENT)).append(seconds)
        if not accepted:
            return
        for level in range(1, length + 1):
            share = sum(count >= level for count in accepted) / len(accepted)
            self.shares[level - 1] += RATE * (share - self.shares[level - 1])

    def choose(self, batch: int) -> int:
        """The number of tokens to draft for a batch of this size."""
        lengths = (0, self.most) if self.most < 2 else (0, 1, self.most)
        for length in reversed(lengths):
            if len(self.seconds.get((batch, length), ())) < FIRST_TRIALS:
                return length
        best = max(lengths, key=lambda length: self.rate(batch, length))
        for length in lengths:
            if length != best and self._is_due(batch, length):
                return length
        return best

    def rate(self, batch: int, length: int) -> float:
        """Expected tokens a second of a request."""
        return (1.0 + sum(self.shares[:length])) / median(self.seconds[batch, length])

    def _is_due(self, batch: int, length: int) -> bool:
        """Whether to try a length again that looks worse."""
        key = batch, length
        self.waiting[key] = self.waiting.get(key, RETRY) - 1
        if self.waiting[key] > 0:
            return False
        self.patience[key] = min(2 * self.patience.get(key, RETRY), LONGEST_RETRY)
        self.waiting[key] = self.patience[key]
        return True
