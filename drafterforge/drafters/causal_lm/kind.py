"""The causal-LM kind: small independent language models as drafters."""

from __future__ import annotations

from typing import Any

import torch

from drafterforge.config.drafter import CausalLMDrafterConfig
from drafterforge.drafters.base import DrafterKind, DrafterSource, TrainedDrafter, TrainingJob
from drafterforge.drafters.causal_lm.propose import CausalLMProposer
from drafterforge.drafters.causal_lm.small import SmallLM, load_small_lm
from drafterforge.errors import DrafterforgeError
from drafterforge.kernels.devices import on_gpu
from drafterforge.kernels.linear import decodes_with_matrix_unit
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


class CausalLMKind(DrafterKind):
    """Small LMs with the target's tokenizer, trained here or elsewhere."""

    name = "causal_lm"
    config_class = CausalLMDrafterConfig

    def recorded_settings(self, job: TrainingJob) -> dict[str, Any]:
        from drafterforge.drafters.causal_lm.train import recorded_settings

        return recorded_settings(job)

    def build(self, job: TrainingJob) -> torch.nn.Module:
        """See `DrafterKind`; the parent, or a new model that takes the target's embeddings if the widths match."""
        from drafterforge.drafters.causal_lm.train import start_drafter

        return start_drafter(job)

    def train(self, job: TrainingJob) -> TrainedDrafter:
        """See `DrafterKind`; distils next-token prediction, without the target's features."""
        from drafterforge.drafters.causal_lm.train import train

        return train(job)

    def load(self, source: DrafterSource, target: Target, shared: dict[Any, Any] | None = None) -> SmallLM:
        return load_small_lm(source.folder, target)

    def check(self, name: str, drafter: SmallLM, target: Target) -> None:
        """See `DrafterKind`; the vocabulary sizes must be equal."""
        size, expected = drafter.model.config.vocab_size, target.config.vocab_size
        if size != expected:
            raise DrafterforgeError(
                f"drafter {name!r} has {size} token ids, {target.name} has {expected}; a causal LM drafts for a target "
                "with the same tokenizer"
            )

    def proposer(self, drafter: SmallLM) -> CausalLMProposer:
        return CausalLMProposer(drafter)

    def default_shape(self, device: torch.device, dtype: torch.dtype) -> TreeShape:
        """See `DrafterKind`.

        Without AMX 6/2/3 was the fastest: a level costs a quarter of a target forward, its head is as large.
        """
        if on_gpu(device) or (dtype == torch.bfloat16 and decodes_with_matrix_unit()):
            return super().default_shape(device, dtype)
        return TreeShape(num_tokens=6, depth=2, top_k=3)
