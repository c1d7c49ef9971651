"""The kind of hybrids: one tree of a neural drafter and retrieval."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from drafterforge.config.names import JOINT
from drafterforge.drafters.base import Drafter, DrafterKind, DrafterSource, DraftRows
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.kind import Eagle3Kind
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.hybrid.propose import RetrievalIndex, draft_hybrid, index_key
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError
from drafterforge.targets.load import Target
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.grow import Tree, TreeShape

NEURAL = Eagle3Kind()


class HybridKind(DrafterKind):
    """Named as `general+retrieval`; opened from its two drafters, which have files of their own."""

    name = "hybrid"
    aliases = ("merged",)
    trained = False
    has_default_shape = True

    def load(self, source: DrafterSource, target: Target, shared: dict[Any, Any] | None = None) -> HybridDrafter:
        """Refused: see `join`."""
        raise ConfigError(f"{source.name}: a hybrid has no files of its own; type NEURAL{JOINT}RETRIEVAL, two names")

    def check(self, name: str, drafter: HybridDrafter, target: Target) -> None:
        """Refuse a neural drafter of another target."""
        NEURAL.check(name, drafter.neural, target)

    def default_shape(self, device: torch.device, dtype: torch.dtype) -> TreeShape:
        """Bounds: what a level and a node are worth decides."""
        return TreeShape(num_tokens=60 if device.type == "cuda" else 16, depth=10, top_k=2)

    def reader(self, drafter: HybridDrafter) -> Drafter:
        """The neural drafter, which reads with the others of its kind."""
        return drafter.neural

    def index_key(self, drafter: HybridDrafter) -> Hashable:
        """What decides what is taken from retrieval."""
        return index_key(drafter)

    def index(self, drafter: HybridDrafter) -> RetrievalIndex:
        """See `DrafterKind`."""
        return RetrievalIndex(drafter)

    def draft_with_index(
        self, drafter: HybridDrafter, evidence: Sequence[Evidence], root: Tensor, shape: TreeShape, draft: DraftRows
    ) -> Tree:
        """See `DrafterKind`; by retrieval alone where that promises enough."""
        return draft_hybrid(drafter, evidence, root, shape, draft)


def can_join(first: Drafter | None, second: Drafter | None) -> bool:
    """Whether two drafters make a hybrid."""
    return isinstance(first, FusedDrafter) and isinstance(second, Retrieval)


def join(name: str, first: Drafter | None, second: Drafter | None) -> HybridDrafter:
    """The hybrid of two drafters; ConfigError unless the first is an EAGLE-3 drafter and the second retrieves."""
    if not can_join(first, second):
        raise ConfigError(
            f"{name}: an EAGLE-3 drafter takes what a retrieval drafter proposes into its trees; type "
            f"NAME{JOINT}retrieval, with the name of an EAGLE-3 drafter in front"
        )
    return HybridDrafter(first, second)
