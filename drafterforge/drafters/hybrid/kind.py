"""The hybrid kind: one tree of a neural drafter and retrieval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from drafterforge.config.names import JOINT
from drafterforge.drafters.base import Drafter, DrafterKind, DrafterSource
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.hybrid.propose import HybridDrafting
from drafterforge.drafters.retrieval.kind import RetrievalKind
from drafterforge.drafters.retrieval.memory import AnswerMemory
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError
from drafterforge.kernels.devices import on_gpu
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

RETRIEVAL = RetrievalKind()


class HybridKind(DrafterKind):
    """Named `general+retrieval`, for example; built from two drafters, without files of its own."""

    name = "hybrid"
    aliases = ("merged",)
    trained = False
    fixed_shapes = True
    has_default_shape = True

    def load(self, source: DrafterSource, target: Target, shared: dict[Any, Any] | None = None) -> HybridDrafter:
        """Raise ConfigError: `combine` builds hybrids."""
        raise ConfigError(f"{source.name}: a hybrid has no files of its own; type NEURAL{JOINT}RETRIEVAL, two names")

    def check(self, name: str, drafter: HybridDrafter, target: Target) -> None:
        from drafterforge.drafters.registry import kind_of  # which imports this module

        kind_of(drafter.neural).check(name, drafter.neural, target)

    def default_shape(self, device: torch.device, dtype: torch.dtype) -> TreeShape:
        """Upper bounds: `HybridDrafter` decides which levels and nodes are worth drafting."""
        return TreeShape(num_tokens=60 if on_gpu(device) else 16, depth=10, top_k=2)

    def reader(self, drafter: HybridDrafter) -> Drafter:
        """The neural drafter: it reads in one pass with other drafters of its kind."""
        return drafter.neural

    def with_memory(self, drafter: HybridDrafter, memory: AnswerMemory, shared: dict[int, Drafter]) -> HybridDrafter:
        return replace(drafter, retrieval=RETRIEVAL.with_memory(drafter.retrieval, memory, shared))

    def indexed_drafting(self, drafter: HybridDrafter) -> HybridDrafting:
        return HybridDrafting(drafter)


def can_combine(first: Drafter | None, second: Drafter | None) -> bool:
    """Whether the drafters are a neural one that merges and a retrieval drafter, in this order."""
    return first is not None and first.merges and isinstance(second, Retrieval)


def combine(name: str, first: Drafter | None, second: Drafter | None) -> HybridDrafter:
    """The hybrid of a neural and a retrieval drafter; ConfigError for other drafters."""
    if not can_combine(first, second):
        raise ConfigError(
            f"{name}: a hybrid combines a drafter whose trees take candidates while they grow (EAGLE-3, block) and a "
            f"retrieval drafter, in this order; type NAME{JOINT}retrieval, NAME being such a drafter"
        )
    return HybridDrafter(first, second)


def with_neural(drafter: Drafter, neural: Drafter) -> Drafter:
    """A hybrid like `drafter` of another neural drafter; that drafter alone if `drafter` is no hybrid."""
    return replace(drafter, neural=neural) if isinstance(drafter, HybridDrafter) else neural
