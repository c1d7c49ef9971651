"""An EAGLE-3 drafter whose trees also take what retrieval proposes.

Both name probabilities, so that the best nodes of either make one tree: it is as large and as deep as its nodes are
likely to be accepted, not as a shape says.
"""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.drafter.fused import FusedDrafter
from drafterforge.drafter.retrieval import Retrieval
from drafterforge.errors import ConfigError


@dataclass(frozen=True)
class Merged:
    """The two drafters, and what a level and a node must be worth.

    Defaults were the fastest of six pairs tried on held-out prompts with the kernels of native.c, on a target of 135
    million parameters; where nodes cost less, as on a GPU, smaller numbers pay.
    """

    eagle: FusedDrafter
    retrieval: Retrieval
    min_reach: float = 0.4  # a level is drafted while its parents, the best of the level before, hold this probability
    min_probability: float = 0.08  # of a node that is verified, all its ancestors included

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("min_reach", "min_probability"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
