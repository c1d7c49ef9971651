"""How a cycle decodes: the shape of its tree, and numerics."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice
from drafterforge.config.fields import setting

MOST_NODES, MOST_LEVELS = 1024, 256  # of a tree that is asked for; larger ones never pay


@dataclass(frozen=True)
class RuntimeConfig:
    """Shape of the draft tree (null: the device's own default), and numerics."""

    num_tokens: int | None = setting(None, "nodes verified per cycle, root included")
    depth: int | None = setting(None, "drafted levels")
    top_k: int | None = setting(None, "beam and children per node")
    numerics: str = setting(
        "auto", "invariant: half precision decodes as its autoregressive self | fast | auto: if it can"
    )

    def __post_init__(self) -> None:
        """Check ranges."""
        require_choice("runtime.numerics", self.numerics, ("auto", "fast", "invariant"))
        require_at_least("runtime.num_tokens", self.num_tokens, 1)
        require_at_least("runtime.depth", self.depth, 0)
        require_at_least("runtime.top_k", self.top_k, 1)
        for key, most in (("num_tokens", MOST_NODES), ("depth", MOST_LEVELS), ("top_k", MOST_NODES)):
            value = getattr(self, key)
            require(value is None or value <= most, f"runtime.{key} must be <= {most}, got {value}")
