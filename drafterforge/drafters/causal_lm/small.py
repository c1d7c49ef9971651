"""A small independent language model as a loaded drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drafterforge.config.target import TargetConfig
from drafterforge.drafters.base import Drafter
from drafterforge.errors import ArtifactError, quote
from drafterforge.targets.load import Target, load_target


@dataclass(frozen=True, eq=False)
class SmallLM(Drafter):
    """A causal LM with the target's tokenizer."""

    kind = "causal_lm"

    model: Target

    @property
    def name(self) -> str:
        return self.model.name


def load_small_lm(folder: Path, target: Target) -> SmallLM:
    """The causal LM in `folder`, with the target's dtype and device; ArtifactError if their token ids differ."""
    dtype = str(target.dtype).removeprefix("torch.")
    config = TargetConfig(name="", source="hf", model=str(folder), dtype=dtype, device=str(target.device))
    model = load_target(config, tapped=False)
    drafter_ids, target_ids = (lm.tokenizer.get_vocab() for lm in (model, target))
    for token, target_id in sorted(target_ids.items(), key=lambda item: item[1]):
        if drafter_ids.get(token, target_id) != target_id:
            raise ArtifactError(
                f"{folder} has another tokenizer than {target.name}: {quote(token)} is {drafter_ids[token]} there and "
                f"{target_id} here; a causal LM drafts for a target with the same tokenizer"
            )
    return SmallLM(model)
