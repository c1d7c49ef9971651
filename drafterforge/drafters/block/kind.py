"""The block kind: a block of tokens in one pass, with full weights or as a LoRA expert."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafterforge.artifacts.json_input import read_json
from drafterforge.config.drafter import BlockDrafterConfig
from drafterforge.drafters.base import DrafterKind, TrainedDrafter, TrainingJob
from drafterforge.drafters.block.checkpoint import load_generalist
from drafterforge.drafters.block.fused import FusedBlock, StackedBlocks
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.propose import BlockGroup, BlockProposer
from drafterforge.drafters.block.published import is_published, read_published
from drafterforge.drafters.block.spec import SHAPE, BlockSpec
from drafterforge.drafters.eagle3.kind import Eagle3Kind
from drafterforge.tree.grow import TreeShape


class BlockKind(DrafterKind):
    """Block drafters; a generalist and its LoRA experts read in one stacked pass."""

    name = "block"
    config_class = BlockDrafterConfig
    scheduled = True
    exports = ("vllm",)
    read_full, fused_class, spec_class = staticmethod(load_generalist), FusedBlock, BlockSpec
    # files, LoRA experts and checks are those of EAGLE-3 drafters
    load, export, check = Eagle3Kind.load, Eagle3Kind.export, Eagle3Kind.check
    base_of, is_adapter, taps = Eagle3Kind.base_of, Eagle3Kind.is_adapter, Eagle3Kind.taps

    def recorded_settings(self, job: TrainingJob) -> dict[str, Any]:
        from drafterforge.drafters.eagle3.train.job import recorded_settings

        of_parent = SHAPE if job.config.parent else ()
        return recorded_settings(job, {key: value for key, value in asdict(job.config).items() if key not in of_parent})

    def parent_settings(self, folder: Path) -> dict[str, Any]:
        """See `DrafterKind`; the shape of blocks and heads."""
        spec = BlockSpec.from_config(read_json(folder / "config.json"), str(folder / "config.json"))
        return {key: getattr(spec, key) for key in SHAPE}

    def build(self, job: TrainingJob) -> BlockDrafter:
        """See `DrafterKind`; with the parent's weights or new ones."""
        from drafterforge.drafters.block.train.job import start_drafter

        return start_drafter(job)

    def train(self, job: TrainingJob) -> TrainedDrafter:
        """See `DrafterKind`; distils blocks below sampled anchors."""
        from drafterforge.drafters.block.train.job import train

        return train(job)

    def proposer(self, drafter: FusedBlock) -> BlockProposer:
        return BlockProposer(drafter)

    def default_shape(self, device: torch.device, dtype: torch.dtype) -> TreeShape:
        """See `DrafterKind`; no deeper than the default block."""
        shape = super().default_shape(device, dtype)
        return replace(shape, depth=min(shape.depth, BlockDrafterConfig().block_size - 1))

    def stack_key(self, drafter: FusedBlock) -> Hashable:
        return id(drafter.generalist or drafter)

    def stack(self, drafters: Sequence[FusedBlock]) -> StackedBlocks:
        return StackedBlocks(drafters)

    def group(self, stack: StackedBlocks) -> BlockGroup:
        return BlockGroup(stack)

    def publishes(self, config: dict[str, Any]) -> bool:
        return is_published(config)

    def read_published(
        self, config: dict[str, Any], tensors: dict[str, Tensor], target: Any, embedding: Tensor, source: str
    ) -> BlockDrafter:
        return read_published(config, tensors, target, embedding, source)
