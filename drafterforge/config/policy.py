"""What `train-policy` makes: one class of keys for every method."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts, require_share
from drafterforge.config.fields import setting


@dataclass(frozen=True)
class PolicyConfig:
    """What `train-policy` makes; every method has a class of its own, with the keys that it reads."""

    method: str = setting("", "what is trained; chosen by policy=")
    name: str = setting("", "of a variant, such as resps-text, which names its artifact; empty: the method's")

    def __post_init__(self) -> None:
        """Check that it is of a method."""
        require_choice("policy.method", self.method, tuple(POLICIES))


@dataclass(frozen=True)
class NetworkPolicyConfig(PolicyConfig):
    """A policy whose decisions a network makes."""

    actor: list[int] = setting([128, 128], "hidden layers of the network that chooses")


@dataclass(frozen=True)
class ShapePolicyConfig(NetworkPolicyConfig):
    """A policy that chooses a tree by what it observes before a cycle."""

    parts: list[str] = setting(["children", "length"], "what it observes: features, text, children, length")
    every: int = setting(1, "cycles an action is kept in decoding")
    temperature: float = setting(0.0, "of choosing in decoding; 0: the best")

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        require_counts(self, "policy", "every")
        require_at_least("policy.temperature", self.temperature, 0.0)
        for part in self.parts:
            require_choice("policy.parts", part, ("features", "text", "children", "length"))
        require(bool(self.parts), "policy.parts must name what the policy sees, such as [children]")


@dataclass(frozen=True)
class PPOPolicyConfig(NetworkPolicyConfig):
    """A policy that PPO trains on replayed cycles."""

    objective: str = setting(
        "average", "average: tokens - rho x seconds | throughput | accept_length | time, as papers reward"
    )
    critic: list[int] = setting([128, 128], "hidden layers of PPO's critic")
    total_cycles: int = setting(400000, "replayed cycles that PPO learns from")
    num_envs: int = setting(16, "answers that PPO plays at once")
    num_steps: int = setting(64, "decisions per answer between PPO's updates")
    batch_size: int = setting(32, "decisions per optimiser step")
    epochs: int = setting(4, "passes over what was played")
    lr: float = setting(3e-4, "learning rate")
    schedule: str = setting("constant", "constant | linear: of the learning rate")
    gamma: float = setting(0.99, "discount")
    lam: float = setting(0.95, "of generalised advantages")
    entropy: float = setting(0.01, "weight of the entropy; 0.1: max-entropy")

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        require_choice("policy.objective", self.objective, ("average", "throughput", "accept_length", "time"))
        require_choice("policy.schedule", self.schedule, ("constant", "linear"))
        require_counts(self, "policy", "total_cycles num_envs num_steps batch_size epochs")
        require(self.lr > 0, f"policy.lr must be > 0, got {self.lr}")
        require_share("policy.gamma", self.gamma)
        require_share("policy.lam", self.lam)


@dataclass(frozen=True)
class ReSpSPolicyConfig(ShapePolicyConfig, PPOPolicyConfig):
    """Re-SpS: PPO chooses a tree and keeps it for some cycles."""

    method: str = setting("resps", "what is trained; chosen by policy=")
    train_every: int = setting(1, "cycles an action is kept in training")

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        require_counts(self, "policy", "train_every")


@dataclass(frozen=True)
class LTDPolicyConfig(PPOPolicyConfig):
    """Learning to Draft: a depth policy after every level and a size policy, trained by PPO."""

    method: str = setting("ltd", "what is trained; chosen by policy=")
    decides: str = setting("both", "depth | size | both, taking turns | independent: both, each trained alone")
    rounds: int = setting(2, "turns of each of the two")
    max_depth: int = setting(8, "deepest tree")
    size_actor: list[int] | None = setting(None, "hidden layers of the size policy; null: as actor")
    size_gamma: float | None = setting(None, "discount of the size policy; null: as gamma")

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        require_choice("policy.decides", self.decides, ("depth", "size", "both", "independent"))
        require_counts(self, "policy", "rounds max_depth")
        if self.size_gamma is not None:
            require_share("policy.size_gamma", self.size_gamma)


@dataclass(frozen=True)
class PlannerPolicyConfig(ShapePolicyConfig):
    """The action values of a planner on recorded answers, distilled into a network."""

    method: str = setting("planner", "what is trained; chosen by policy=")
    weight_decay: float = setting(0.1, "of the network that chooses")
    planner_rounds: int = setting(60, "evaluations of the policy")

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        require_at_least("policy.weight_decay", self.weight_decay, 0.0)
        require_counts(self, "policy", "planner_rounds")


@dataclass(frozen=True)
class MarginalPolicyConfig(PolicyConfig):
    """Trees that grow while the next level and node are worth their seconds; two numbers are fitted by replay."""

    method: str = setting("marginal", "what is trained; chosen by policy=")
    max_depth: int = setting(8, "deepest tree")

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        require_counts(self, "policy", "max_depth")


@dataclass(frozen=True)
class RouterPolicyConfig(PolicyConfig):
    """A classifier of prompts, whose keys are `router.*`."""

    method: str = setting("router", "what is trained; chosen by policy=")


@dataclass(frozen=True)
class JointPolicyConfig(PolicyConfig):
    """Drafters and trees chosen together by a selector, replayed; nothing is trained."""

    method: str = setting("joint", "what is trained; chosen by policy=")
    arms: int = setting(8, "pairs of drafter and tree to choose from")

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        require_counts(self, "policy", "arms")


POLICIES: dict[str, type[PolicyConfig]] = {
    "resps": ReSpSPolicyConfig,
    "ltd": LTDPolicyConfig,
    "planner": PlannerPolicyConfig,
    "marginal": MarginalPolicyConfig,
    "router": RouterPolicyConfig,
    "joint": JointPolicyConfig,
}
