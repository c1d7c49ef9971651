"""What is recorded, replayed and timed for schedulers."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_counts
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.fields import setting


@dataclass(frozen=True)
class GridConfig:
    """Tree shapes that a scheduler chooses from; to draft nothing is always one of them."""

    name: str = setting("cpu", "named in policies and reports")
    num_tokens: list[int] = setting([1, 4, 8, 12, 16, 24, 32, 48, 64], "nodes, root included")
    depths: list[int] = setting([1, 2, 3, 4, 5, 6, 7, 8], "drafted levels")
    top_ks: list[int] = setting([1, 2, 4, 8], "beam and children per node")

    def __post_init__(self) -> None:
        """Check that they rise."""
        for key in ("num_tokens", "depths", "top_ks"):
            values = getattr(self, key)
            rising = bool(values) and values[0] >= 1 and values == sorted(set(values))
            require(rising, f"grid.{key} must be rising numbers from 1 on, got {values}")


@dataclass(frozen=True)
class TracesConfig:
    """What is recorded of the target and its drafters, once for all policies."""

    name: str = setting("", "of the artifact; empty: the policy's drafter")
    drafters: list[str] = setting([], "EAGLE-3 drafters; empty: the policy's")
    domains: list[str] = setting([*POOL_DOMAINS], "with a prompt grammar")
    num_train: int = setting(200, "answers that policies learn from, of tasks that no drafter learned from")
    num_test: int = setting(80, "answers that measure them, of further tasks")
    max_new_tokens: int = setting(128, "length limit of an answer")
    told_top_k: int = setting(4, "width whose candidates' scores are recorded, for policy=ltd")
    batch_size: int = setting(8, "answers decoded together")
    shard_size: int = setting(16, "answers per resumable shard")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_counts(self, "traces", "num_train num_test max_new_tokens told_top_k batch_size shard_size")
        require_at_least("traces.max_new_tokens", self.max_new_tokens, 2)
        require(bool(self.domains), "traces.domains must name a domain, such as [sql]")


KNOTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)  # node counts that are measured; between them is interpolated


@dataclass(frozen=True)
class LatencyConfig:
    """How a device's costs are measured."""

    path: str = setting("", "a profile to use instead of this device's own, such as another device's", input="path")
    num_prompts: int = setting(24, "answers decoded with trees drawn from the grid, to fit")
    num_held_out: int = setting(12, "answers decoded with one tree each, to compare with what the fit predicts")
    max_new_tokens: int = setting(128, "length limit of an answer")
    probe_tokens: int = setting(16, "tokens decoded without a drafter beside each answer")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_counts(self, "latency", "num_prompts num_held_out")
        require_at_least("latency.max_new_tokens", self.max_new_tokens, 2)
        require_at_least("latency.probe_tokens", self.probe_tokens, 2)


@dataclass(frozen=True)
class LiveConfig:
    """Decoding of held-out prompts with what was trained."""

    num_prompts: int = setting(24, "decoded one by one, methods taking turns; 0: replay only")
    policies: list[str] = setting([], "further policies, by name, decoded beside the new one")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_at_least("live.num_prompts", self.num_prompts, 0)
