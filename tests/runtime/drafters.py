"""Random drafters of every kind for a tiny target, and the shape and prompts to decode with them."""

from __future__ import annotations

import torch

from drafterforge.drafters.causal_lm.small import SmallLM
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.stacked import family_order
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.tree.grow import TreeShape
from tests.drafters.blocks import block_experts
from tests.models import tiny_drafter, tiny_target, uneven

SHAPE = TreeShape(10, 3, 3)
PROMPTS = [[3, 14, 15, 9, 26, 5], [7], [4] * 17, [9, 8, 7]]


def random_adapter(drafter, rank: int, names: tuple[str, ...] = ("fc", "q_proj", "v_proj", "up_proj", "lm_head")):
    """A random adapter of some projections, whose updates are of ordinary size."""
    return {
        name: LowRank(0.3 * torch.randn(rank, module.in_features), 0.3 * torch.randn(module.out_features, rank))
        for name, module in drafter.named_modules()
        if name.split(".")[-1] in names
    }


def lora_drafters(target, count: int, dtype: torch.dtype = torch.float32, **changes: object) -> list[FusedDrafter]:
    """A generalist and LoRA experts of it, with different ranks and projections.

    dtype: the weights are numbers of it, in float32.
    """
    drafter = tiny_drafter(target, **changes)
    if changes:
        uneven(drafter)
    drafter.to(dtype).float()
    generalist = FusedDrafter(drafter, target.backbone.embedding)
    kinds = [("fc", "q_proj", "v_proj", "up_proj", "lm_head"), ("k_proj", "gate_proj", "down_proj"), ("o_proj",)]
    adapters = [random_adapter(drafter, 2 + n % 3, kinds[n % 3]) for n in range(count - 1)]
    return [generalist, *(generalist.with_adapter(adapter) for adapter in adapters)]


def full_drafters(target, count: int, **changes: object) -> list[FusedDrafter]:
    """Drafters with different weights, norms and vocabularies."""
    drafters = []
    for _ in range(count):
        drafter = uneven(tiny_drafter(target, **changes))
        drafter.set_vocabulary(torch.randperm(61)[:40].sort().values)
        drafters.append(FusedDrafter(drafter, target.backbone.embedding))
    return drafters


def mixed_drafters(target, count: int, **changes: object) -> list[FusedDrafter]:
    """Two generalists with their experts, in mixed order, and a drafter without experts."""
    first, second = lora_drafters(target, count, **changes), lora_drafters(target, count, **changes)
    shuffled = [first[0], second[1], second[0], *first[1:], *second[2:], *full_drafters(target, 1, **changes)]
    return [shuffled[index] for index in family_order(shuffled)]


def drafters_of_every_kind(target) -> dict:
    """Drafters of every kind."""
    experts = lora_drafters(target, 3)
    small = SmallLM(tiny_target(num_hidden_layers=4, hidden_size=16, intermediate_size=24))
    named = {"general": experts[0], "sql": experts[1], "other": full_drafters(target, 1)[0], "chat": experts[2]}
    blocks = dict(zip(("block", "block sql"), block_experts(target, 2, markov_rank=4), strict=True))
    return {**named, **blocks, "small": small, "retrieval": Retrieval(min_probability=1e-3, min_expected=0.0)}


def hybrids(target) -> list:
    """A hybrid, its neural drafter alone, a hybrid of an expert that retrieves less, and retrieval alone."""
    (first, second), retrieval = lora_drafters(target, 2), Retrieval(min_probability=1e-3, min_expected=0.0)
    careful = HybridDrafter(second, retrieval, trust=2.0, min_probability=0.02, min_reach=0.1)
    return [HybridDrafter(first, retrieval, min_probability=0.01), first, careful, retrieval]
