"""What a drafter is: its kind, its size, its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts
from drafterforge.config.fields import section, setting

NEW = ("warm", "scratch")  # what drafter.init is where no trained drafter is begun with
LORA_TARGETS = ("fc", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


@dataclass(frozen=True)
class CausalLMConfig:
    """Size of a small causal LM of the target's family and vocabulary; null keeps the target's proportions."""

    num_layers: int = setting(2, "decoder layers; drafter.init=warm takes them from the target, evenly spaced")
    hidden_size: int | None = setting(None, "width")
    num_heads: int | None = setting(None, "attention heads")
    intermediate_size: int | None = setting(None, "width of the MLP")
    train_embeddings: bool | None = setting(
        None, "embeddings and head too; null: only where they cannot be the target's"
    )

    def __post_init__(self) -> None:
        """Check ranges."""
        require_counts(self, "drafter.causal_lm", "num_layers hidden_size num_heads intermediate_size")


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank additions that make an expert of a generalist (drafter.tuning=lora)."""

    rank: int = setting(16, "inner width of every addition")
    alpha: float = setting(32.0, "additions are scaled by alpha / rank")
    targets: list[str] = setting([*LORA_TARGETS], "projections that get one")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_at_least("drafter.lora.rank", self.rank, 1)
        require(self.alpha > 0, f"drafter.lora.alpha must be > 0, got {self.alpha}")
        require(bool(self.targets), "drafter.lora.targets must name a projection, such as [q_proj]")
        for name in self.targets:
            require_choice("drafter.lora.targets", name, LORA_TARGETS)


@dataclass(frozen=True)
class DrafterConfig:
    """Kind, architecture and start of a drafter."""

    kind: str = setting("eagle3", "eagle3 | causal_lm: a small LM, distilled | retrieval: a datastore of the answers")
    draft_vocab_size: int = setting(16384, "most frequent answer tokens the drafter can propose")
    head: str = setting(
        "own", "own: trained with the rest | target: the target's rows, frozen; not stored if it ties them"
    )
    init: str = setting(
        "warm", "warm: from the target | scratch: random | a drafter's name or folder", input="drafters"
    )
    fc_norm: bool = setting(False, "EAGLE-3.1: norm each of the three features before they are joined")
    norm_output: bool = setting(False, "EAGLE-3.1: drafted tokens read their parents' outputs after the final norm")
    causal_lm: CausalLMConfig = section(CausalLMConfig)
    tuning: str = setting("full", "full: every weight | lora: low-rank additions to the drafter that init names")
    lora: LoraConfig = section(LoraConfig)
    settings: dict[str, Any] = setting({}, "of a kind that this package does not come with: its own keys")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_at_least("drafter.draft_vocab_size", self.draft_vocab_size, 2)
        require(bool(self.init), "drafter.init must be warm, scratch, or a drafter's name or folder")
        require_choice("drafter.head", self.head, ("own", "target"))
        require(
            self.head == "own" or (self.kind == "eagle3" and self.tuning == "full"),
            f"drafter.head=target keeps an EAGLE-3 drafter from training its head, got drafter.kind={self.kind} and "
            f"drafter.tuning={self.tuning}; leave it out: a LoRA expert without lm_head in drafter.lora.targets keeps "
            "its generalist's",
        )
        require_choice("drafter.tuning", self.tuning, ("full", "lora"))
        require(
            self.tuning == "full" or self.kind == "eagle3",
            f"drafter.tuning=lora adds to an EAGLE-3 drafter, got drafter.kind={self.kind}; type drafter.tuning=full",
        )
        named = self.init not in NEW
        for key in ("fc_norm", "norm_output"):
            require(
                not getattr(self, key) or (self.kind == "eagle3" and not named),
                f"drafter.{key}=true shapes a new EAGLE-3 drafter, got drafter.kind={self.kind} and drafter.init="
                f"{self.init}; leave it out, or type drafter.kind=eagle3 drafter.init=warm",
            )
        require(
            self.tuning == "full" or named,
            f"drafter.tuning=lora adds to a trained drafter, got drafter.init={self.init}; type drafter.init=general",
        )
