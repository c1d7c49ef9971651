"""What a stored policy is and is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class PolicySpec:
    """A policy's description, stored beside its weights."""

    kind: str  # shapes: a whole shape at once | ltd, marginal: depth and size while drafting
    method: str  # resps | ltd | planner | marginal
    target_fingerprint: str
    drafter: str  # name
    drafter_sha256: str  # of its manifest: a policy knows one drafter
    device: str  # that its latency profile was measured on
    grid: dict[str, Any]
    parts: list[str] = field(default_factory=list)  # of the observation
    every: int = 1  # cycles an action is kept
    temperature: float = 0.0  # of choosing; 0: the best
    top_k: int = 0  # width, for kind=ltd and kind=marginal
    hidden: dict[str, list[int]] = field(default_factory=dict)  # network -> widths of its hidden layers
    numbers: dict[str, float] = field(default_factory=dict)  # kind=marginal: reach and rate, see `MarginalPolicy`
    schema: int = SCHEMA
