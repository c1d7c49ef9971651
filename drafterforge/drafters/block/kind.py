"""The block kind: a block of tokens in one pass, with full weights or as a LoRA expert."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafterforge.config.drafter import BlockDrafterConfig
from drafterforge.drafters.base import DrafterKind, DrafterSource, TrainedDrafter, TrainingJob
from drafterforge.drafters.block.checkpoint import load_generalist
from drafterforge.drafters.block.fused import FusedBlock, StackedBlocks
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.propose import BlockGroup, BlockProposer
from drafterforge.drafters.block.published import is_published, read_published
from drafterforge.drafters.eagle3.checkpoint import check_taps, generalist_of
from drafterforge.drafters.eagle3.kind import Eagle3Kind
from drafterforge.drafters.eagle3.lora import ADAPTER, load_adapter, merge
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


class BlockKind(DrafterKind):
    """Block drafters; a generalist and its LoRA experts read in one stacked pass."""

    name = "block"
    config_class = BlockDrafterConfig
    scheduled = True
    exports = ("vllm",)

    def recorded_settings(self, job: TrainingJob) -> dict[str, Any]:
        from drafterforge.drafters.block.train.job import recorded_settings

        return recorded_settings(job)

    def build(self, job: TrainingJob) -> BlockDrafter:
        """See `DrafterKind`; with the parent's weights or new ones."""
        from drafterforge.drafters.block.train.job import start_drafter

        return start_drafter(job)

    def train(self, job: TrainingJob) -> TrainedDrafter:
        """See `DrafterKind`; distils blocks below sampled anchors."""
        from drafterforge.drafters.block.train.job import train

        return train(job)

    def load(self, source: DrafterSource, target: Target, shared: dict[Any, Any] | None = None) -> FusedBlock:
        """See `DrafterKind`; LoRA experts share their generalist's weights, one that is loaded alone is merged."""
        embedding = target.backbone.embedding
        if shared is None:
            drafter = self.export(source, embedding)
            check_taps(source.folder, drafter, target)
            return FusedBlock(drafter, embedding)
        folder = source.base or source.folder
        key = self.name, folder.resolve()
        if key not in shared:
            drafter = load_generalist(folder, embedding)
            check_taps(folder, drafter, target)
            shared[key] = drafter, FusedBlock(drafter, embedding)
        drafter, fused = shared[key]
        return fused if source.base is None else fused.with_adapter(load_adapter(source.folder / ADAPTER, drafter))

    def base_of(self, folder: Path) -> Path | None:
        return generalist_of(folder)

    def is_adapter(self, folder: Path) -> bool:
        return (folder / ADAPTER).is_dir()

    check = Eagle3Kind.check  # of vocabulary and width

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

    def export(self, source: DrafterSource, embedding: Tensor) -> BlockDrafter:
        """See `DrafterKind`; LoRA experts are merged into their generalist's weights."""
        drafter = load_generalist(source.base or source.folder, embedding)
        return merge(drafter, load_adapter(source.folder / ADAPTER, drafter)) if source.base else drafter
