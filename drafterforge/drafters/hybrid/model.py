"""An EAGLE-3 drafter whose trees also take what retrieval proposes.

What the drafter says counts where retrieval has seen little of the kind, see `tree.merge`: one tree of both is as large
and as deep as its nodes are likely to be accepted, not as a shape says.
"""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError


@dataclass(frozen=True)
class HybridDrafter(Drafter):
    """The two drafters, how much each counts, and what a level and a node must be worth.

    Defaults were among the fastest of some hundred tried by replaying held-out answers, with the kernels of native.c
    and a target of 135 million parameters; where nodes cost less, as on a GPU, a smaller `min_probability` pays.
    """

    kind = "hybrid"

    neural: FusedDrafter
    retrieval: Retrieval
    trust: float = 8.0  # the EAGLE-3 drafter's law weighs as much as so many of retrieval's doubts
    enough: float = 0.8  # nothing is drafted where retrieval alone is expected to add as many tokens
    min_reach: float = 0.4  # probability that parents of a drafted level hold, as far as retrieval cannot tell
    min_probability: float = 0.08  # of a node that is verified, all its ancestors included

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("min_reach", "min_probability"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("trust", "enough"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
