"""Trained policies: tree schedulers and routers."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts, require_share
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.fields import setting


@dataclass(frozen=True)
class PolicyConfig:
    """What is trained."""

    name: str = setting("", "of a variant, such as resps-text, which names its artifact; empty: the method's")
    method: str = setting(
        "marginal", "resps | ltd | planner | marginal | router | joint: drafter and tree by a selector"
    )
    objective: str = setting(
        "average", "average: tokens - rho x seconds | throughput | accept_length | time, as papers reward"
    )
    parts: list[str] = setting(["children", "length"], "features, text, children, length")
    train_every: int = setting(1, "cycles an action is kept in training")
    every: int = setting(1, "cycles an action is kept in decoding")
    temperature: float = setting(0.0, "of choosing in decoding; 0: the best")
    actor: list[int] = setting([128, 128], "hidden layers of the network that chooses")
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
    weight_decay: float = setting(0.1, "planner: of the network that chooses")
    planner_rounds: int = setting(60, "planner: evaluations of the policy")
    decides: str = setting("both", "ltd: depth | size | both, taking turns | independent: both, each trained alone")
    rounds: int = setting(2, "ltd: turns of each of the two")
    max_depth: int = setting(8, "ltd, marginal: deepest tree")
    size_actor: list[int] | None = setting(None, "ltd: hidden layers of the size policy; null: as actor")
    size_gamma: float | None = setting(None, "ltd: discount of the size policy; null: as gamma")
    arms: int = setting(8, "joint: pairs of drafter and tree to choose from")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_choice("policy.method", self.method, ("resps", "ltd", "planner", "marginal", "router", "joint"))
        require_choice("policy.objective", self.objective, ("average", "throughput", "accept_length", "time"))
        require_choice("policy.decides", self.decides, ("depth", "size", "both", "independent"))
        require_choice("policy.schedule", self.schedule, ("constant", "linear"))
        require_counts(
            self, "policy", "train_every every total_cycles num_envs num_steps batch_size epochs rounds max_depth"
        )
        require_counts(self, "policy", "planner_rounds arms")
        require_at_least("policy.weight_decay", self.weight_decay, 0.0)
        require_at_least("policy.temperature", self.temperature, 0.0)
        for key in ("gamma", "lam", "size_gamma"):
            if getattr(self, key) is not None:
                require_share(f"policy.{key}", getattr(self, key))
        for key in ("size_actor", "size_gamma"):
            given = getattr(self, key) is not None and self.method != "ltd"
            require(not given, f"policy.{key}= is read by policy=ltd only, not by policy.method={self.method}")
        for part in self.parts:
            require_choice("policy.parts", part, ("features", "text", "children", "length"))
        require(bool(self.parts), "policy.parts must name what the policy sees, such as [children]")


@dataclass(frozen=True)
class RouterConfig:
    """The classifier that sees a prompt and names its drafter (policy=router)."""

    domains: list[str] = setting([*POOL_DOMAINS], "with a prompt grammar")
    features: str = setting("target", "target: what its prefill computes anyway | text: those of a small text encoder")
    encoder: str = setting("", "router.features=text: folder or hub id of the encoder")
    labels: str = setting("domains", "domains: a prompt's own | measured: which drafter drafts its answer best")
    drafters: list[str] = setting([], "router.labels=measured: names; empty: the whole pool")
    max_new_tokens: int = setting(
        48, "router.labels=measured: length limit of the answers that drafters are measured on"
    )
    num_train: int = setting(400, "training prompts of each domain")
    num_val: int = setting(60, "prompts of each domain that calibrate its confidence")
    num_test: int = setting(100, "held-out prompts of each domain; they are also asked in other words")
    rephrased: float = setting(0.5, "share of the training prompts that are put in other words")
    held_out_kinds: list[str] = setting([], "of rephrasing, tested but not trained on: role, ...")
    hidden: int = setting(64, "width of the MLP's inner layer; 0: a linear head")
    max_steps: int = setting(150, "optimiser steps")
    batch_size: int = setting(256, "prompts per step")
    lr: float = setting(3.0e-3, "learning rate of AdamW")
    weight_decay: float = setting(0.01, "AdamW's")
    label_smoothing: float = setting(0.05, "probability that hard labels give to all labels alike")
    label_temperature: float = setting(0.1, "measured labels: softmax of accept lengths, divided by this")

    def __post_init__(self) -> None:
        """Check ranges, and that an encoder is named where one is needed."""
        require_choice("router.features", self.features, ("target", "text"))
        require(
            (self.features == "text") == bool(self.encoder),
            "router.encoder= goes with router.features=text, and only with it; type both or neither",
        )
        require_choice("router.labels", self.labels, ("domains", "measured"))
        require(
            not self.drafters or self.labels == "measured",
            "router.drafters= is read by router.labels=measured only; type both or neither",
        )
        require_at_least("router.max_new_tokens", self.max_new_tokens, 2)
        require_counts(self, "router", "num_train num_val num_test max_steps batch_size")
        for key in ("rephrased", "label_smoothing"):
            require_share(f"router.{key}", getattr(self, key))
        for key in ("hidden", "weight_decay"):
            require_at_least(f"router.{key}", getattr(self, key), 0)
        for key in ("lr", "label_temperature"):
            require(getattr(self, key) > 0, f"router.{key} must be > 0, got {getattr(self, key)}")
