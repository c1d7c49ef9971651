"""Config of the router."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts, require_share
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.fields import setting


@dataclass(frozen=True)
class RouterConfig:
    """The router: a classifier that maps a prompt to a drafter (policy=router)."""

    domains: list[str] = setting([*POOL_DOMAINS], "domains of the prompts; each needs a prompt grammar")
    features: str = setting("target", "target: hidden states of the target's prefill | text: a small text encoder")
    encoder: str = setting("", "router.features=text: folder or hub id of the encoder")
    labels: str = setting("domains", "domains: the prompt's domain | measured: the drafter with the best accept length")
    drafters: list[str] = setting([], "router.labels=measured: names of drafters; empty: the whole pool")
    max_new_tokens: int = setting(48, "router.labels=measured: length limit of the answers, in tokens")
    num_train: int = setting(400, "training prompts per domain")
    num_val: int = setting(60, "prompts per domain to calibrate the confidence")
    num_test: int = setting(100, "held-out prompts per domain, which are also tested rephrased")
    rephrased: float = setting(0.5, "share of the training prompts that are rephrased")
    held_out_kinds: list[str] = setting([], "kinds of rephrasing, such as role, for tests only, not for training")
    hidden: int = setting(64, "width of the hidden layer; 0: a linear classifier")
    max_steps: int = setting(150, "optimiser steps")
    batch_size: int = setting(256, "prompts per step")
    lr: float = setting(3.0e-3, "learning rate of AdamW")
    weight_decay: float = setting(0.01, "weight decay of AdamW")
    label_smoothing: float = setting(0.05, "router.labels=domains: label smoothing")
    label_temperature: float = setting(0.1, "router.labels=measured: temperature of the softmax over accept lengths")

    def __post_init__(self) -> None:
        require_choice("router.features", self.features, ("target", "text"))
        require(
            (self.features == "text") == bool(self.encoder),
            "router.encoder= and router.features=text belong together; type both or neither",
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
