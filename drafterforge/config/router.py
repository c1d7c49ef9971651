"""The classifier of prompts."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts, require_share
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.fields import setting


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
