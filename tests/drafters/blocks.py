"""Random block drafters for a tiny target."""

from __future__ import annotations

import torch

from drafterforge.drafters.block.fused import FusedBlock
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.spec import BlockSpec
from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.lora import LowRank
from tests.models import uneven

VARIANTS = {
    "DFlash": {},
    "one layer": {"num_layers": 1, "block_size": 3},
    "DSpark": {"markov_rank": 4},
    "DSpark with confidence": {"markov_rank": 4, "confidence": True},
}


def tiny_block(target, draft_vocab_size: int = 40, **changes: object) -> BlockDrafter:
    """A random block drafter, with uneven norms, whose vocabulary lacks some ids."""
    more = {"block_size": 5, "mask_token_id": 60} | changes
    spec = BlockSpec.for_block(target.config, target.backbone.taps, draft_vocab_size, **more)
    drafter = BlockDrafter(spec, target.backbone.embedding.float())
    scratch_init(drafter, std=0.2)
    uneven(drafter)
    drafter.set_vocabulary(torch.randperm(target.config.vocab_size)[:draft_vocab_size].sort().values)
    return drafter.to(target.device).eval()


def block_experts(target, count: int, **changes: object) -> list[FusedBlock]:
    """A generalist and LoRA experts of it, with different ranks and projections."""
    drafter = tiny_block(target, **changes)
    generalist, experts = FusedBlock(drafter, target.backbone.embedding), []
    names = [("fc", "q_proj", "v_proj", "up_proj", "lm_head"), ("k_proj", "gate_proj", "down_proj"), ("o_proj",)]
    for number in range(count - 1):
        adapter = {
            name: LowRank(0.3 * torch.randn(2 + number, m.in_features), 0.3 * torch.randn(m.out_features, 2 + number))
            for name, m in drafter.named_modules()
            if name.split(".")[-1] in names[number % 3]
        }
        experts.append(generalist.with_adapter(adapter))
    return [generalist, *experts]
