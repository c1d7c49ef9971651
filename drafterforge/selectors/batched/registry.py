"""Selectors of many requests by name; names, presets and options are those of `selectors.registry`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.selectors import registry
from drafterforge.selectors.base import Selector
from drafterforge.selectors.batched.bandits import BatchedExp3, BatchedThompson, BatchedUCB1, BatchedUCBSpec
from drafterforge.selectors.batched.base import BatchedSelector
from drafterforge.selectors.batched.fixed import BatchedRandom, BatchedStatic
from drafterforge.selectors.batched.full_information import BatchedFullInformation
from drafterforge.selectors.exp3 import Exp3
from drafterforge.selectors.fixed import Random, Static
from drafterforge.selectors.full_information import FullInformation
from drafterforge.selectors.metasd import MetaSDUCB
from drafterforge.selectors.thompson import Thompson
from drafterforge.selectors.ucb import UCB1, UCBSpec

TWINS: dict[type[Selector], type[BatchedSelector]] = {
    Static: BatchedStatic,
    Random: BatchedRandom,
    FullInformation: BatchedFullInformation,
    UCB1: BatchedUCB1,
    MetaSDUCB: BatchedUCB1,
    UCBSpec: BatchedUCBSpec,
    Exp3: BatchedExp3,
    Thompson: BatchedThompson,
}


def batched_names() -> list[str]:
    """Names of the selectors that serve many requests at once; MetaSD's only with `reward=efficiency`."""
    kinds = {name: registry.kind_of(name) for name in registry.names()}
    return [name for name, (kind, preset) in kinds.items() if kind in TWINS and not preset.get("window")]


def batched_selector(
    name: str,
    drafters: Sequence[str],
    depth: int,
    num_slots: int,
    device: torch.device | str = "cpu",
    *,
    seed: int = 0,
    carry: bool = False,
    costs: Tensor | Sequence[float] | None = None,
    levels: Sequence[int] | None = None,
    **options: Any,
) -> BatchedSelector:
    """A selector of `num_slots` concurrent requests; see `registry.selector` for the options."""
    kind, _ = registry.kind_of(name)
    if kind not in TWINS:
        raise ConfigError(
            f"selector={name} cannot serve many requests at once; take one of: {', '.join(batched_names())}"
        )
    costs = costs.tolist() if isinstance(costs, Tensor) else costs
    rule = registry.selector(name, drafters, depth, seed=seed, carry=carry, costs=costs, levels=levels, **options)
    return TWINS[kind](rule, num_slots, device)
