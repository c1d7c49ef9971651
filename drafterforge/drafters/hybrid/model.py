"""A neural drafter and a retrieval drafter that build one tree together.

The neural drafter matters where retrieval has seen few occurrences, see `tree.merge`. The size and depth of the tree
follow from the acceptance probability of its nodes, not from a fixed shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError


@dataclass(frozen=True)
class HybridDrafter(Drafter):
    """The two drafters, their weights, and thresholds for drafting a level and verifying a node.

    The defaults were among the fastest of about a hundred in replays of held-out answers, on a CPU with native.c and a
    target of 135 million parameters. Where nodes cost less, as on a GPU, a smaller `min_probability` is faster.
    """

    kind = "hybrid"

    neural: Drafter  # of a kind that `merges`
    retrieval: Retrieval
    trust: float = 8.0  # weight of the neural drafter's distribution, in units of retrieval's `doubt`
    min_retrieval_tokens: float = 0.8  # skip the neural pass if retrieval alone is expected to add as many tokens
    min_reach: float = 0.4  # probability of accepting a level's parents, times the drafter's weight, to draft it
    min_probability: float = 0.08  # probability of accepting a node and its ancestors, to verify it

    def __post_init__(self) -> None:
        for name in ("min_reach", "min_probability"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("trust", "min_retrieval_tokens"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
