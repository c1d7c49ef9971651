"""The description of a stored policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class PolicySpec:
    """The description of a policy, stored beside its weights."""

    kind: str  # shapes: chooses tree shapes | ltd, marginal: depth and size while drafting
    method: str  # resps | ltd | planner | marginal
    target_fingerprint: str
    drafter: str  # name
    drafter_sha256: str  # fingerprint of the drafter's weights, as a policy serves one drafter
    device: str  # of its latency profile
    grid: dict[str, Any]
    parts: list[str] = field(default_factory=list)  # of the observation
    hold_cycles: int = 1  # cycles for which an action is kept; `every` in policy.json
    temperature: float = 0.0  # of sampling an action; 0: the best
    top_k: int = 0  # width, for kind=ltd and kind=marginal
    hidden: dict[str, list[int]] = field(default_factory=dict)  # network -> widths of its hidden layers
    numbers: dict[str, float] = field(default_factory=dict)  # kind=marginal: reach and rate, see `MarginalPolicy`
    schema: int = SCHEMA
