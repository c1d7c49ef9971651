"""The EAGLE-3 kind: one layer that reads the target's features, with full weights or as a LoRA expert."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from drafterforge.artifacts.json_input import read_json
from drafterforge.config.drafter import Eagle3DrafterConfig
from drafterforge.drafters.base import DistilTogether, DrafterKind, DrafterSource, TrainedDrafter, TrainingJob
from drafterforge.drafters.eagle3.checkpoint import check_taps, generalist_of, load_full
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.lora import ADAPTER, load_adapter, merge
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import NORMS_31, DrafterSpec
from drafterforge.drafters.eagle3.stack import Eagle3Proposer, StackedGroup
from drafterforge.drafters.eagle3.stacked import StackedDrafters, family_order, signature
from drafterforge.errors import DrafterforgeError
from drafterforge.targets.load import Target


class Eagle3Kind(DrafterKind):
    """EAGLE-3 drafters; those with equal architectures read in one stacked pass."""

    name = "eagle3"
    config_class = Eagle3DrafterConfig
    scheduled = True
    fixed_shapes = True
    exports = ("sglang", "vllm", "vllm-pool")
    read_full, fused_class, spec_class = staticmethod(load_full), FusedDrafter, DrafterSpec

    def recorded_settings(self, job: TrainingJob) -> dict[str, Any]:
        """See `DrafterKind`; settings added in later versions are omitted at their defaults."""
        from drafterforge.drafters.eagle3.train.job import recorded_config, recorded_settings

        return recorded_settings(job, recorded_config(job.config))

    def build(self, job: TrainingJob) -> Eagle3Drafter:
        """See `DrafterKind`; with the parent's weights or new ones."""
        from drafterforge.drafters.eagle3.train.job import start_drafter

        return start_drafter(job)

    def train(self, job: TrainingJob) -> TrainedDrafter:
        """See `DrafterKind`; EAGLE-3's training-time test."""
        from drafterforge.drafters.eagle3.train.job import train

        return train(job)

    def train_together(self, jobs: Sequence[TrainingJob], distil: DistilTogether) -> list[TrainedDrafter]:
        """See `DrafterKind`; LoRA experts of one generalist."""
        from drafterforge.drafters.eagle3.train.job import train_together

        return train_together(jobs, distil)

    def load(self, source: DrafterSource, target: Target, shared: dict[Any, Any] | None = None) -> FusedDrafter:
        """See `DrafterKind`; LoRA experts share their generalist's weights, one that is loaded alone is merged."""
        embedding = target.backbone.embedding
        if shared is None:
            drafter = self.export(source, embedding)
            check_taps(source.folder, drafter, target)
            return self.fused_class(drafter, embedding)
        folder = source.base or source.folder
        key = self.name, folder.resolve()
        if key not in shared:
            drafter = self.read_full(folder, embedding)
            check_taps(folder, drafter, target)
            shared[key] = drafter, self.fused_class(drafter, embedding)
        drafter, fused = shared[key]
        return fused if source.base is None else fused.with_adapter(load_adapter(source.folder / ADAPTER, drafter))

    def parent_settings(self, folder: Path) -> dict[str, Any]:
        """See `DrafterKind`; the norms of EAGLE-3.1."""
        spec = DrafterSpec.from_config(read_json(folder / "config.json"), str(folder / "config.json"))
        return {key: getattr(spec, key) for key in NORMS_31}

    def taps(self, folder: Path) -> tuple[int, ...]:
        """See `DrafterKind`; those of its generalist for a LoRA expert."""
        path = (self.base_of(folder) or folder) / "config.json"
        return self.spec_class.from_config(read_json(path), str(path)).tap_layers

    def base_of(self, folder: Path) -> Path | None:
        return generalist_of(folder)

    def is_adapter(self, folder: Path) -> bool:
        return (folder / ADAPTER).is_dir()

    def check(self, name: str, drafter: FusedDrafter, target: Target) -> None:
        """See `DrafterKind`; vocabulary and width must be the target's."""
        spec, shape = drafter.spec, tuple(target.backbone.embedding.shape)
        if (spec.vocab_size, spec.target_hidden_size) != shape:
            raise DrafterforgeError(
                f"drafter {name!r} drafts for a target of vocabulary {spec.vocab_size} and width "
                f"{spec.target_hidden_size}; {target.name} has {shape[0]} and {shape[1]}; train a drafter for it"
            )

    def proposer(self, drafter: FusedDrafter) -> Eagle3Proposer:
        return Eagle3Proposer(drafter)

    def stack_key(self, drafter: FusedDrafter) -> Hashable:
        return signature(drafter)

    def stack_order(self, drafters: Sequence[FusedDrafter]) -> list[int]:
        """See `DrafterKind`; experts of one generalist are adjacent."""
        return family_order(drafters)

    def stack(self, drafters: Sequence[FusedDrafter]) -> StackedDrafters:
        return StackedDrafters(drafters)

    def group(self, stack: StackedDrafters) -> StackedGroup:
        return StackedGroup(stack)

    def export(self, source: DrafterSource, embedding: Tensor) -> Eagle3Drafter:
        """See `DrafterKind`; LoRA experts are merged into their generalist's weights."""
        drafter = self.read_full(source.base or source.folder, embedding)
        return merge(drafter, load_adapter(source.folder / ADAPTER, drafter)) if source.base else drafter
