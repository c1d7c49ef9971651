"""Config of the policy of `train-policy`: a class for every method."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import (
    require,
    require_at_least,
    require_choice,
    require_counts,
    require_share,
    require_sizes,
)
from drafterforge.config.fields import setting


@dataclass(frozen=True)
class PolicyConfig:
    """Config of the policy of `train-policy`; every method has a subclass with its own keys."""

    method: str = setting("", "training method; set by policy=")
    name: str = setting("", "name of a variant, such as resps-text, and of its artifact; empty: the method's")

    def __post_init__(self) -> None:
        require_choice("policy.method", self.method, tuple(POLICIES))


@dataclass(frozen=True)
class NetworkPolicyConfig(PolicyConfig):
    """A policy that is a neural network."""

    actor: list[int] = setting([128, 128], "sizes of the hidden layers of the policy network")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes("policy.actor", self.actor)


@dataclass(frozen=True)
class ShapePolicyConfig(NetworkPolicyConfig):
    """A policy that chooses the tree of a cycle from an observation before the cycle."""

    parts: list[str] = setting(["children", "length"], "parts of the observation: features, text, children, length")
    hold_cycles: int = setting(1, "cycles for which an action is kept in decoding")
    temperature: float = setting(0.0, "softmax temperature over actions when decoding; 0: the best action")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "policy", "hold_cycles")
        require_at_least("policy.temperature", self.temperature, 0.0)
        for part in self.parts:
            require_choice("policy.parts", part, ("features", "text", "children", "length"))
        require(bool(self.parts), "policy.parts must name what the policy observes, such as [children]")


@dataclass(frozen=True)
class PPOPolicyConfig(NetworkPolicyConfig):
    """A policy that PPO trains on replayed cycles."""

    objective: str = setting(
        "average", "reward; average: tokens per second in the long run | the papers' throughput | accept_length | time"
    )
    critic: list[int] = setting([128, 128], "sizes of the hidden layers of the critic")
    total_cycles: int = setting(400000, "replayed cycles of the training")
    num_envs: int = setting(16, "answers replayed in parallel")
    num_steps: int = setting(64, "decisions per answer between updates")
    batch_size: int = setting(32, "decisions per optimiser step")
    epochs: int = setting(4, "passes over the decisions of an update")
    lr: float = setting(3e-4, "learning rate")
    schedule: str = setting("constant", "schedule of the learning rate: constant | linear")
    gamma: float = setting(0.99, "discount factor")
    lam: float = setting(0.95, "lambda of generalised advantage estimation (GAE)")
    entropy: float = setting(0.01, "weight of the entropy bonus; 0.1: the max-entropy variant of Re-SpS")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("policy.objective", self.objective, ("average", "throughput", "accept_length", "time"))
        require_choice("policy.schedule", self.schedule, ("constant", "linear"))
        require_counts(self, "policy", "total_cycles num_envs num_steps batch_size epochs")
        require(self.lr > 0, f"policy.lr must be > 0, got {self.lr}")
        require_share("policy.gamma", self.gamma)
        require_share("policy.lam", self.lam)
        require_sizes("policy.critic", self.critic)


@dataclass(frozen=True)
class ReSpSPolicyConfig(ShapePolicyConfig, PPOPolicyConfig):
    """Re-SpS: a PPO policy that chooses a tree and keeps it for some cycles."""

    method: str = setting("resps", "training method; set by policy=")
    train_hold_cycles: int = setting(1, "cycles for which an action is kept in training")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "policy", "train_hold_cycles")


@dataclass(frozen=True)
class LTDPolicyConfig(PPOPolicyConfig):
    """Learning to Draft: PPO policies for the depth, asked after every level, and for the size of the tree."""

    method: str = setting("ltd", "training method; set by policy=")
    decides: str = setting("both", "trained policies: depth | size | both, in turns | independent: both, separately")
    rounds: int = setting(2, "decides=both: trainings of each policy, the first alone, then in turns")
    max_depth: int = setting(8, "largest depth of a tree")
    alone_size: int | None = setting(None, "nodes while depth is trained alone, root included; null: largest")
    size_decisions: int | None = setting(None, "decisions of a training of size; null: its share of total_cycles")
    depth_decisions: int | None = setting(None, "decisions of a training of depth; null: its share of total_cycles")
    size_actor: list[int] | None = setting(None, "hidden layers of the size policy; null: as actor")
    size_gamma: float | None = setting(None, "discount factor of the size policy; null: as gamma")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("policy.decides", self.decides, ("depth", "size", "both", "independent"))
        require_counts(self, "policy", "rounds max_depth size_decisions depth_decisions")
        require_at_least("policy.alone_size", self.alone_size, 2)
        require_sizes("policy.size_actor", self.size_actor or [])
        if self.size_gamma is not None:
            require_share("policy.size_gamma", self.size_gamma)


@dataclass(frozen=True)
class PlannerPolicyConfig(ShapePolicyConfig):
    """A network distilled from the action values that a planner computes on recorded answers."""

    method: str = setting("planner", "training method; set by policy=")
    weight_decay: float = setting(0.1, "weight decay of the policy network")
    planner_rounds: int = setting(60, "evaluations of the policy during training")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("policy.weight_decay", self.weight_decay, 0.0)
        require_counts(self, "policy", "planner_rounds")
        require(self.hold_cycles == 1, "policy=planner plans every cycle, got policy.hold_cycles; leave it out")


@dataclass(frozen=True)
class MarginalPolicyConfig(PolicyConfig):
    """Trees that grow as long as the next level or node is worth its time; two parameters are fitted by replay."""

    method: str = setting("marginal", "training method; set by policy=")
    max_depth: int = setting(8, "largest depth of a tree")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "policy", "max_depth")


@dataclass(frozen=True)
class RouterPolicyConfig(PolicyConfig):
    """A prompt classifier, configured by the keys `router.*`."""

    method: str = setting("router", "training method; set by policy=")


@dataclass(frozen=True)
class JointPolicyConfig(PolicyConfig):
    """Replay of selectors whose arms are pairs of drafter and tree; nothing is trained."""

    method: str = setting("joint", "training method; set by policy=")
    arms: int = setting(8, "number of arms, which are pairs of drafter and tree")

    def __post_init__(self) -> None:
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
