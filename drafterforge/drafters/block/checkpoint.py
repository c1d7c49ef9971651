"""Reads and writes block drafters in DFlash's layout; loading is strict, as for EAGLE-3 drafters."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.spec import BlockSpec
from drafterforge.drafters.eagle3.checkpoint import generalist_of, load_full
from drafterforge.drafters.eagle3.lora import ADAPTER, Adapter, load_adapter, merge


def load_generalist(folder: Path, embedding: Tensor) -> BlockDrafter:
    """The drafter with full weights in `folder`; raises ArtifactError as `eagle3.checkpoint.load_full` does."""
    return load_full(folder, embedding, BlockSpec, BlockDrafter)


def load_expert(folder: Path, embedding: Tensor) -> tuple[BlockDrafter, Adapter | None]:
    """The generalist and the adapter of the LoRA expert in `folder`; for a drafter with full weights, it and None."""
    generalist = generalist_of(folder)
    if generalist is None:
        return load_generalist(folder, embedding), None
    drafter = load_generalist(generalist, embedding)
    return drafter, load_adapter(folder / ADAPTER, drafter)


def load_block(folder: Path, embedding: Tensor) -> BlockDrafter:
    """The drafter in `folder`; a LoRA expert is merged."""
    drafter, adapter = load_expert(folder, embedding)
    return drafter if adapter is None else merge(drafter, adapter)
