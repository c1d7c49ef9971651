"""How many tokens retrieval alone adds, by how many it promises."""

from __future__ import annotations

from bisect import bisect

from drafterforge.runtime.averages import Mean

BOUNDS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.5, 4.0, 6.0)  # promised tokens, between which averages are taken
CENTRES = (0.05, 0.2, 0.45, 0.8, 1.2, 2.0, 3.2, 5.0, 8.0)
RATIOS = (1.6, 1.8, 2.0, 1.5, 1.2, 1.1, 0.8, 0.7, 0.85)  # assumed; of the shipped datastore on natural prompts
PRIOR, HORIZON = 32.0, 400.0  # cycles that these count for, and that averages reach back


class RetrievalYield:
    """Averages of cycles in which retrieval drafted alone.

    The probabilities of its nodes are too low where it has few occurrences, and too high along long copies.
    """

    def __init__(self) -> None:
        self.promised = [Mean(centre, PRIOR, HORIZON) for centre in CENTRES]
        self.added = [Mean(centre * ratio, PRIOR, HORIZON) for centre, ratio in zip(CENTRES, RATIOS, strict=True)]

    def of(self, promised: float) -> float:
        """Tokens that retrieval is expected to add where its probabilities promise so many."""
        part = bisect(BOUNDS, promised)
        return promised * self.added[part].value / max(self.promised[part].value, 1e-6)

    def learn(self, promised: float, added: float) -> None:
        """Learn from a tree of retrieval alone."""
        part = bisect(BOUNDS, promised)
        self.promised[part].add(promised)
        self.added[part].add(added)
