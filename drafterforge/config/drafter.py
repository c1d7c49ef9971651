"""Config of a drafter: its kind, size and initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from drafterforge.config.catalogue import add_choice
from drafterforge.config.checks import require, require_at_least, require_choice, require_counts
from drafterforge.config.fields import section, setting

AUTO = "auto"  # value of drafter.init that `training.initialisation` replaces
NO_PARENT = (AUTO, "warm", "scratch")  # values of drafter.init that name no trained drafter
LORA_TARGETS = ("fc", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


@dataclass(frozen=True)
class CausalLMConfig:
    """Size of a small causal LM with the target's architecture and vocabulary; null: in the target's proportions."""

    num_layers: int = setting(2, "decoder layers; drafter.init=warm takes them from the target, evenly spaced")
    hidden_size: int | None = setting(None, "hidden size")
    num_heads: int | None = setting(None, "attention heads")
    intermediate_size: int | None = setting(None, "inner size of the MLP")
    train_embeddings: bool | None = setting(
        None, "train embeddings and head; null: only if their size differs from the target's"
    )

    def __post_init__(self) -> None:
        require_counts(self, "drafter.causal_lm", "num_layers hidden_size num_heads intermediate_size")


@dataclass(frozen=True)
class LoraConfig:
    """LoRA adapter that turns a generalist into an expert (drafter.tuning=lora)."""

    rank: int = setting(16, "rank of the LoRA matrices")
    alpha: float = setting(32.0, "LoRA matrices are scaled by alpha / rank")
    targets: list[str] = setting([*LORA_TARGETS], "projections that are adapted")

    def __post_init__(self) -> None:
        require_at_least("drafter.lora.rank", self.rank, 1)
        require(self.alpha > 0, f"drafter.lora.alpha must be > 0, got {self.alpha}")
        require(bool(self.targets), "drafter.lora.targets must name a projection, such as [q_proj]")
        for name in self.targets:
            require_choice("drafter.lora.targets", name, LORA_TARGETS)


@dataclass(frozen=True)
class DrafterConfig:
    """Config of the drafter of `train-drafter`; every kind has a subclass with its own keys."""

    num_taps: ClassVar[int | None] = None  # layers of the target that it reads; None: any number

    kind: str = setting("", "kind of drafter; set by drafter=")

    def __post_init__(self) -> None:
        require_choice("drafter.kind", self.kind, tuple(DRAFTERS))

    @property
    def parent(self) -> str:
        """Name or folder of the trained drafter to start from; empty for none."""
        return ""

    @property
    def is_adapter(self) -> bool:
        """Whether only a LoRA adapter of the parent is trained."""
        return False

    @property
    def undecided(self) -> bool:
        """Whether its start is left to `training.initialisation`."""
        return False


@dataclass(frozen=True)
class StartedDrafterConfig(DrafterConfig):
    """A drafter that starts from the target's weights, from random ones, or from a trained drafter."""

    init: str = setting(
        "warm",
        "initial weights; warm: the target's | scratch: random | a drafter's name or folder | auto: a LoRA on a "
        "trained generalist if one fits the target, else warm",
        input="drafters",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.init), "drafter.init must be warm, scratch, or a drafter's name or folder")

    @property
    def parent(self) -> str:
        """Name or folder of the trained drafter to start from; empty for none."""
        return "" if self.init in NO_PARENT else self.init


@dataclass(frozen=True)
class FeatureDrafterConfig(StartedDrafterConfig):
    """A drafter that reads the target's features, with weights of its own or as a LoRA expert."""

    draft_vocab_size: int = setting(16384, "size of the draft vocabulary: the most frequent tokens of the answers")
    head: str = setting(
        "own", "own: a trained head | target: frozen rows of the target's head, not stored if it ties embeddings"
    )
    tuning: str = setting("full", "full: all weights | lora: a LoRA adapter of the drafter that init= names")
    lora: LoraConfig = section(LoraConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("drafter.draft_vocab_size", self.draft_vocab_size, 2)
        require_choice("drafter.head", self.head, ("own", "target"))
        require_choice("drafter.tuning", self.tuning, ("full", "lora"))
        require(
            self.head == "own" or not self.is_adapter,
            "drafter.head=target is for drafter.tuning=full, got drafter.tuning=lora; leave it out: a LoRA expert "
            "without lm_head in drafter.lora.targets keeps the head of its generalist",
        )
        require(
            bool(self.parent) or not self.is_adapter,
            f"drafter.tuning=lora adapts a trained drafter, got drafter.init={self.init}; type drafter.init=general",
        )

    @property
    def is_adapter(self) -> bool:
        return self.tuning == "lora"


@dataclass(frozen=True)
class Eagle3DrafterConfig(FeatureDrafterConfig):
    """An EAGLE-3 drafter."""

    num_taps: ClassVar[int | None] = 3

    kind: str = setting("eagle3", "kind of drafter; set by drafter=")
    fc_norm: bool = setting(False, "EAGLE-3.1: normalise each of the three features before they are concatenated")
    norm_output: bool = setting(False, "EAGLE-3.1: feed back drafter outputs after the final norm")

    @property
    def undecided(self) -> bool:
        """Whether its start is left to `training.initialisation`."""
        return self.init == AUTO


@dataclass(frozen=True)
class BlockDrafterConfig(FeatureDrafterConfig):
    """A drafter of blocks in one pass (DFlash)."""

    kind: str = setting("block", "kind of drafter; set by drafter=")
    num_layers: int = setting(2, "decoder layers; drafter.init=warm takes the target's last ones")
    block_size: int = setting(8, "tokens of a block: the last committed one and the drafted ones")
    num_anchors: int = setting(64, "blocks of a conversation, at random positions of its answers, in one training step")
    markov_rank: int = setting(0, "rank of DSpark's scores of pairs of drafted tokens; 0: none")
    confidence: bool = setting(False, "DSpark's estimate of how likely each position is accepted; trees are cut by it")
    position_weights: str = setting(
        "decay", "loss weight of position i; decay: trainer.step_decay ** i | dpace: its share in the accept length"
    )
    dpace_alpha: float = setting(0.5, "dpace takes (1 - dpace_alpha) * q + dpace_alpha for a probability q")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "drafter", "num_layers num_anchors")
        require_at_least("drafter.block_size", self.block_size, 2)
        require_at_least("drafter.markov_rank", self.markov_rank, 0)
        require(
            self.markov_rank > 0 or not self.confidence,
            "drafter.confidence=true reads the states of DSpark's pair scores; type drafter.markov_rank=64",
        )
        require_choice("drafter.position_weights", self.position_weights, ("decay", "dpace"))
        require(0 < self.dpace_alpha <= 1, f"drafter.dpace_alpha must be above 0 and at most 1, got {self.dpace_alpha}")
        require(self.init != AUTO, "drafter.init=auto chooses the start of an EAGLE-3 drafter; type drafter.init=warm")


@dataclass(frozen=True)
class CausalLMDrafterConfig(StartedDrafterConfig):
    """A small causal LM, distilled from the target."""

    kind: str = setting("causal_lm", "kind of drafter; set by drafter=")
    causal_lm: CausalLMConfig = section(CausalLMConfig)

    def __post_init__(self) -> None:
        """Check that it has a start."""
        super().__post_init__()
        require(self.init != AUTO, "drafter.init=auto chooses the start of an EAGLE-3 drafter; type drafter.init=warm")


@dataclass(frozen=True)
class RetrievalDrafterConfig(DrafterConfig):
    """A datastore of the domain's answers; nothing is trained."""

    kind: str = setting("retrieval", "kind of drafter; set by drafter=")
    init: str = setting("", "a datastore's name or folder, whose answers come first; empty: none", input="drafters")

    @property
    def parent(self) -> str:
        """Name or folder of the datastore to add to; empty for none."""
        return self.init


DRAFTERS: dict[str, type[DrafterConfig]] = {
    "eagle3": Eagle3DrafterConfig,
    "causal_lm": CausalLMDrafterConfig,
    "retrieval": RetrievalDrafterConfig,
    "block": BlockDrafterConfig,
}


def register_drafter(kind: str, config_class: type[DrafterConfig]) -> None:
    """Register `drafter=KIND` with the keys of this class; no YAML file is needed."""
    DRAFTERS[kind] = config_class
    add_choice("drafter", kind, {"kind": kind})
