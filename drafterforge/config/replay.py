"""Config of traces, tree grids, latency profiles and live checks for schedulers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.fields import setting


@dataclass(frozen=True)
class GridConfig:
    """The tree shapes that a scheduler chooses from; drafting nothing is one of them, unless `mask` leaves it out."""

    name: str = setting("cpu", "name of the grid in policies and reports")
    num_tokens: list[int] = setting([1, 4, 8, 12, 16, 24, 32, 48, 64], "numbers of verified nodes, root included")
    depths: list[int] = setting([1, 2, 3, 4, 5, 6, 7, 8], "numbers of drafted levels")
    top_ks: list[int] = setting([1, 2, 4, 8], "beam widths, which are also the children per node")
    mask: str = setting(
        "pool", "left out: pool: trees above their candidates | drafting: also no drafting | resps: by Re-SpS's rule"
    )

    def __post_init__(self) -> None:
        for key in ("num_tokens", "depths", "top_ks"):
            values = getattr(self, key)
            ascending = bool(values) and values[0] >= 1 and values == sorted(set(values))
            require(ascending, f"grid.{key} must be ascending whole numbers >= 1, got {values}")
        require_choice("grid.mask", self.mask, ("pool", "drafting", "resps"))


@dataclass(frozen=True)
class TracesConfig:
    """Recorded answers of the target and its drafters, which all policies share."""

    name: str = setting("", "name of the traces; empty: the drafter's")
    drafters: list[str] = setting([], "EAGLE-3 drafters to record; empty: the policy's", input="drafters")
    domains: list[str] = setting([*POOL_DOMAINS], "domains of the prompts; each needs a prompt grammar")
    num_train: int = setting(200, "answers to train policies on, from tasks that no drafter was trained on")
    num_test: int = setting(80, "answers to measure policies on, from further tasks")
    max_new_tokens: int = setting(128, "length limit of an answer, in tokens")
    temperature: float = setting(0.0, "sampling temperature of the answers, recorded and decoded live; 0: greedy")
    score_top_k: int = setting(4, "top_k of the trees that policy=marginal and ltd choose from")
    batch_size: int = setting(8, "answers decoded together")
    shard_size: int = setting(16, "answers per resumable shard")
    max_gb: float = setting(8.0, "largest size on disk, in GB, estimated before anything is recorded")

    def __post_init__(self) -> None:
        require_counts(self, "traces", "num_train num_test max_new_tokens score_top_k batch_size shard_size")
        require_at_least("traces.max_new_tokens", self.max_new_tokens, 2)
        require_at_least("traces.temperature", self.temperature, 0.0)
        require(self.max_gb > 0, f"traces.max_gb must be > 0, got {self.max_gb}")
        require(bool(self.domains), "traces.domains must name a domain, such as [sql]")

    def recorded(self) -> dict[str, Any]:
        """The settings that decide the content of traces; those of earlier versions were greedy and say nothing."""
        ignored = {"max_gb"} if self.temperature else {"max_gb", "temperature"}
        return {key: value for key, value in asdict(self).items() if key not in ignored}


KNOTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)  # measured node counts; others are interpolated


@dataclass(frozen=True)
class LatencyConfig:
    """How the latency profile of a device is measured."""

    path: str = setting("", "use this latency profile instead of measuring, such as another device's", input="path")
    device: str = setting("", "price cycles by another device, published or measured there: a100-8b | h100-8b")
    num_prompts: int = setting(24, "answers decoded with random trees of the grid, to fit the profile")
    num_held_out: int = setting(12, "answers decoded with one tree each, to check the fitted profile")
    max_new_tokens: int = setting(128, "length limit of an answer, in tokens")
    probe_tokens: int = setting(
        16, "tokens decoded without a drafter beside each answer, to correct for drift of its speed"
    )

    def __post_init__(self) -> None:
        require(not (self.path and self.device), "latency.path and latency.device both name a profile; leave one out")
        require_counts(self, "latency", "num_prompts num_held_out")
        require_at_least("latency.max_new_tokens", self.max_new_tokens, 2)
        require_at_least("latency.probe_tokens", self.probe_tokens, 2)

    @property
    def is_named(self) -> bool:
        """Whether a profile is given, rather than measured here."""
        return bool(self.path or self.device)


@dataclass(frozen=True)
class LiveConfig:
    """Timed decoding of held-out prompts with the trained policy."""

    num_prompts: int = setting(24, "prompts decoded one by one, methods in turn; 0: replay only")
    policies: list[str] = setting([], "names of further policies to decode with")

    def __post_init__(self) -> None:
        require_at_least("live.num_prompts", self.num_prompts, 0)
