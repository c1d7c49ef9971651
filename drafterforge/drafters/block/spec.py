"""The dimensions of a block drafter, and their `config.json` in the layouts that vLLM and SGLang read.

Without a Markov head it is DFlash's (`DFlashDraftModel`), with one DSpark's (`Qwen3DSparkModel`), as read by vLLM
0.32.0: vllm/model_executor/models/qwen3_dflash.py and qwen3_dspark.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from transformers import PretrainedConfig

from drafterforge.drafters.eagle3.spec import LARGEST, DrafterSpec, check_spec
from drafterforge.errors import ArtifactError, quote, shorten

DFLASH, DSPARK = "DFlashDraftModel", "Qwen3DSparkModel"
LARGEST_BLOCK = 256  # tokens


SHAPE = ("num_layers", "block_size", "markov_rank", "confidence")  # settings that a new drafter takes from its parent


@dataclass(frozen=True)
class BlockSpec(DrafterSpec):
    """Shapes and constants of a block drafter; those of an EAGLE-3 drafter, whose norms it lacks, and these."""

    num_taps: ClassVar[int | None] = None

    num_layers: int = 2
    block_size: int = 8  # tokens of a block: the root and a mask token for each drafted position
    mask_token_id: int = 0  # target id, whose embedding stands for a token to draft
    markov_rank: int = 0  # of the Markov head; 0: none
    confidence: bool = False  # whether there is a confidence head, which needs a Markov head

    @property
    def num_drafted(self) -> int:
        """Positions that a block drafts."""
        return self.block_size - 1

    @property
    def method(self) -> str:
        return "dspark" if self.markov_rank else "dflash"

    @property
    def speculators_model(self) -> str:
        return "DSparkDraftModel" if self.markov_rank else "DFlashDraftModel"

    @property
    def served_tokens(self) -> int:
        return self.num_drafted

    def speculators_keys(self) -> dict[str, Any]:
        """See `DrafterSpec`; of DFlash, and of DSpark if there is a Markov head."""
        keys = {
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "aux_hidden_state_layer_ids": list(self.tap_layers),
            "sliding_window_non_causal": True,  # vLLM takes it for all layers
            "sample_from_anchor": False,  # the root proposes nothing
        }
        if self.markov_rank:
            keys |= {
                "markov_rank": self.markov_rank,
                "markov_head_type": "vanilla",
                "enable_confidence_head": self.confidence,
                "confidence_head_with_markov": self.confidence,
            }
        return keys

    @staticmethod
    def of(plain: DrafterSpec, **more: Any) -> BlockSpec:
        """A spec with the dimensions of another drafter's.  more: its other fields."""
        return BlockSpec(**{field.name: getattr(plain, field.name) for field in fields(DrafterSpec)}, **more)

    @staticmethod
    def for_block(config: PretrainedConfig, taps: tuple[int, ...], draft_vocab_size: int, **more: Any) -> BlockSpec:
        """A spec with the target's width, heads and rope."""
        return BlockSpec.of(DrafterSpec.for_target(config, taps, draft_vocab_size), **more)

    def to_config(self, dtype: str) -> dict[str, Any]:
        """See `DrafterSpec`; target layers are named by their output, one less than by their input."""
        config = super().to_config(dtype)
        for key in ("eagle_config", "norm_before_residual", "fc_norm", "norm_output"):
            del config[key]
        layers = [layer - 1 for layer in self.tap_layers]
        config |= {
            "architectures": [DSPARK if self.markov_rank else DFLASH],
            "model_type": "qwen3",
            "num_hidden_layers": self.num_layers,
            "layer_types": ["full_attention"] * self.num_layers,
            "use_sliding_window": False,
            "sliding_window": None,
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "dflash_config": {"mask_token_id": self.mask_token_id, "target_layer_ids": layers, "causal": False},
        }
        if self.markov_rank:
            config |= {
                "target_layer_ids": layers,
                "markov_rank": self.markov_rank,
                "markov_head_type": "vanilla",
                "enable_confidence_head": self.confidence,
                "confidence_head_with_markov": self.confidence,
                "sample_from_anchor": False,
                "dspark_bonus_anchor": True,
            }
        return config

    @staticmethod
    def from_config(config: dict[str, Any], source: str) -> BlockSpec:
        """Parse a `config.json`.  source: its name in errors."""
        if not isinstance(config, dict):
            raise ArtifactError(f"{source} is not a JSON object; wanted the config of a block drafter")
        architecture = (config.get("architectures") or ["?"])[0]
        if architecture not in (DFLASH, DSPARK):
            raise ArtifactError(f"{source} describes a {quote(architecture)}, wanted {DFLASH!r} or {DSPARK!r}")
        try:
            plain = {**config, "architectures": ["LlamaForCausalLMEagle3"]}
            spec = BlockSpec.of(
                DrafterSpec.from_config(plain, source),
                num_layers=config["num_hidden_layers"],
                block_size=config["block_size"],
                mask_token_id=config["mask_token_id"],
                markov_rank=config.get("markov_rank", 0),
                confidence=config.get("enable_confidence_head", False),
            )
        except KeyError as error:
            raise ArtifactError(f"{source} lacks the key {error}; wanted the config of a block drafter") from None
        check_block(spec, source)
        return spec


def check_block(spec: BlockSpec, source: str) -> None:
    """Raise ArtifactError on impossible dimensions.  source: their name in errors."""
    check_spec(spec, source)
    ranges = {
        "num_hidden_layers": (spec.num_layers, 1, LARGEST_BLOCK),
        "block_size": (spec.block_size, 2, LARGEST_BLOCK),
        "mask_token_id": (spec.mask_token_id, 0, spec.vocab_size - 1),
        "markov_rank": (spec.markov_rank, 0, LARGEST),
    }
    for name, (value, least, most) in ranges.items():
        if type(value) is not int or not least <= value <= most:
            raise ArtifactError(f"{source}: {name} is {shorten(value)}, wanted a number from {least} to {most}")
    if type(spec.confidence) is not bool or (spec.confidence and not spec.markov_rank):
        raise ArtifactError(
            f"{source}: enable_confidence_head is {shorten(spec.confidence)} with markov_rank={spec.markov_rank}; "
            "wanted true with a Markov head, or false"
        )
