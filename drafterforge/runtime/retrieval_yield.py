"""How many tokens retrieval alone adds, by how many its probabilities promise."""

from __future__ import annotations

from bisect import bisect

from drafterforge.runtime.averages import Mean

BOUNDS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.5, 4.0, 6.0)  # promised tokens, between which averages are taken
PROMISED = (0.05, 0.2, 0.45, 0.8, 1.2, 2.0, 3.2, 5.0, 8.0)  # assumed of each range until cycles are known,
ADDED = (0.08, 0.35, 0.9, 1.15, 1.45, 2.1, 2.4, 3.4, 6.8)  # and tokens that it adds: the shipped datastore's
PRIOR, HORIZON = 24.0, 400.0  # cycles that these assumptions count for; cycles that averages reach back


class RetrievalYield:
    """Averages of the cycles in which retrieval drafted alone.

    The probabilities of its nodes are too low where it has few occurrences, and too high along long copies.
    """

    def __init__(self) -> None:
        self.promised = [Mean(value, PRIOR, HORIZON) for value in PROMISED]
        self.added = [Mean(value, PRIOR, HORIZON) for value in ADDED]

    def of(self, promised: float) -> float:
        """Tokens that retrieval is expected to add where its probabilities promise so many."""
        left, below = 0.0, 0.0
        for mean, added in zip(self.promised, self.added, strict=True):  # interpolates linearly between the ranges
            if promised <= mean.value:
                return below + (added.value - below) * (promised - left) / (mean.value - left)
            left, below = mean.value, added.value
        return below * promised / left

    def learn(self, promised: float, added: float) -> None:
        """Learn from a tree of retrieval alone."""
        part = bisect(BOUNDS, promised)
        self.promised[part].add(promised)
        self.added[part].add(added)

    def as_prior(self) -> RetrievalYield:
        """What other requests begin with."""
        prior = RetrievalYield()
        for mine, theirs in zip((*prior.promised, *prior.added), (*self.promised, *self.added), strict=True):
            mine.value = theirs.value
        return prior
