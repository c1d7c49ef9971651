"""Config of decoding: the shape of the draft tree, and numerics."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice
from drafterforge.config.fields import setting

MATCH, REJECTION = "match", "rejection"
MAX_NODES, MAX_LEVELS = 1024, 256  # of a configured tree; larger ones never pay off


@dataclass(frozen=True)
class RuntimeConfig:
    """Shape of the draft tree, and numerics."""

    num_tokens: int | None = setting(
        None, "nodes verified per cycle, root included; null: the drafter's default, or as drafter=auto decides"
    )
    depth: int | None = setting(None, "drafted levels; null: the drafter's default, or as drafter=auto decides")
    top_k: int | None = setting(
        None, "beam width and children per node; null: the drafter's default, or as drafter=auto decides"
    )
    numerics: str = setting(
        "auto",
        "invariant: bit-identical to autoregressive decoding | fast | auto: invariant in half precision where possible",
    )
    verify: str = setting(
        MATCH,
        "match: output equals sampling at that seed | rejection: chains of one drafter that samples; lossless in "
        "distribution, but another drafter gives another answer",
    )

    def __post_init__(self) -> None:
        require_choice("runtime.verify", self.verify, (MATCH, REJECTION))
        require_choice("runtime.numerics", self.numerics, ("auto", "fast", "invariant"))
        require_at_least("runtime.num_tokens", self.num_tokens, 1)
        require_at_least("runtime.depth", self.depth, 0)
        require_at_least("runtime.top_k", self.top_k, 1)
        for key, limit in (("num_tokens", MAX_NODES), ("depth", MAX_LEVELS), ("top_k", MAX_NODES)):
            value = getattr(self, key)
            require(value is None or value <= limit, f"runtime.{key} must be <= {limit}, got {value}")

    def require_match(self) -> None:
        """Refuse rejection verification in commands that compare answers with autoregressive decoding."""
        require(
            self.verify == MATCH,
            "runtime.verify=rejection gives other answers than autoregressive decoding at the same seed, so only "
            "`generate` and `serve` take it; leave it out",
        )
