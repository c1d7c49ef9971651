"""What a drafter is: its kind, its size, its start."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.catalogue import add_choice
from drafterforge.config.checks import require, require_at_least, require_choice, require_counts
from drafterforge.config.fields import section, setting

AUTO = "auto"  # drafter.init that leaves the choice to `training.initialisation`
NO_PARENT = (AUTO, "warm", "scratch")  # values of drafter.init that name no trained drafter
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
    """What `train-drafter` makes; every kind has a class of its own, with the keys that it reads."""

    kind: str = setting("", "kind of drafter; chosen by drafter=")

    def __post_init__(self) -> None:
        """Check that it is of a kind."""
        require_choice("drafter.kind", self.kind, tuple(DRAFTERS))

    @property
    def parent(self) -> str:
        """Name or folder of the trained drafter that this one begins with; empty if it begins anew."""
        return ""

    @property
    def adds(self) -> bool:
        """Whether it only adds to its parent."""
        return False

    @property
    def undecided(self) -> bool:
        """Whether its start is left to `training.initialisation`."""
        return False


@dataclass(frozen=True)
class StartedDrafterConfig(DrafterConfig):
    """A drafter that may begin with the target or with a trained drafter."""

    init: str = setting(
        "warm",
        "warm: from the target | scratch: random | a drafter's name or folder | auto: see drafter=auto",
        input="drafters",
    )

    def __post_init__(self) -> None:
        """Check that it has a start."""
        super().__post_init__()
        require(bool(self.init), "drafter.init must be warm, scratch, or a drafter's name or folder")

    @property
    def parent(self) -> str:
        """Name or folder of the trained drafter that this one begins with; empty if it begins anew."""
        return "" if self.init in NO_PARENT else self.init


@dataclass(frozen=True)
class Eagle3DrafterConfig(StartedDrafterConfig):
    """An EAGLE-3 drafter, which reads the target's features."""

    kind: str = setting("eagle3", "kind of drafter; chosen by drafter=")
    draft_vocab_size: int = setting(16384, "most frequent answer tokens the drafter can propose")
    head: str = setting(
        "own", "own: trained with the rest | target: the target's rows, frozen; not stored if it ties them"
    )
    fc_norm: bool = setting(False, "EAGLE-3.1: norm each of the three features before they are joined")
    norm_output: bool = setting(False, "EAGLE-3.1: drafted tokens read their parents' outputs after the final norm")
    tuning: str = setting("full", "full: every weight | lora: low-rank additions to the drafter that init names")
    lora: LoraConfig = section(LoraConfig)

    def __post_init__(self) -> None:
        """Check ranges, and keys that contradict each other."""
        super().__post_init__()
        require_at_least("drafter.draft_vocab_size", self.draft_vocab_size, 2)
        require_choice("drafter.head", self.head, ("own", "target"))
        require_choice("drafter.tuning", self.tuning, ("full", "lora"))
        require(
            self.head == "own" or not self.adds,
            "drafter.head=target keeps an EAGLE-3 drafter from training its head, got drafter.tuning=lora; leave it "
            "out: a LoRA expert without lm_head in drafter.lora.targets keeps its generalist's",
        )
        for key in ("fc_norm", "norm_output"):
            require(
                not getattr(self, key) or not self.parent,
                f"drafter.{key}=true shapes a new EAGLE-3 drafter, got drafter.init={self.init}; leave it out, or type "
                "drafter.init=warm",
            )
        require(
            bool(self.parent) or not self.adds,
            f"drafter.tuning=lora adds to a trained drafter, got drafter.init={self.init}; type drafter.init=general",
        )

    @property
    def adds(self) -> bool:
        """Whether it only adds to its parent."""
        return self.tuning == "lora"

    @property
    def undecided(self) -> bool:
        """Whether its start is left to `training.initialisation`."""
        return self.init == AUTO


@dataclass(frozen=True)
class CausalLMDrafterConfig(StartedDrafterConfig):
    """A small LM, distilled."""

    kind: str = setting("causal_lm", "kind of drafter; chosen by drafter=")
    causal_lm: CausalLMConfig = section(CausalLMConfig)

    def __post_init__(self) -> None:
        """Check that it has a start."""
        super().__post_init__()
        require(self.init != AUTO, "drafter.init=auto chooses the start of an EAGLE-3 drafter; type drafter.init=warm")


@dataclass(frozen=True)
class RetrievalDrafterConfig(DrafterConfig):
    """A datastore of the domain's answers; nothing is trained."""

    kind: str = setting("retrieval", "kind of drafter; chosen by drafter=")


DRAFTERS: dict[str, type[DrafterConfig]] = {
    "eagle3": Eagle3DrafterConfig,
    "causal_lm": CausalLMDrafterConfig,
    "retrieval": RetrievalDrafterConfig,
}


def register_drafter(kind: str, config_class: type[DrafterConfig]) -> None:
    """Let `drafter=KIND` be typed, with the keys of this class; no YAML file is needed."""
    DRAFTERS[kind] = config_class
    add_choice("drafter", kind, {"kind": kind})
