"""Drafters that decode together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drafterforge.config.checks import require_at_least
from drafterforge.config.fields import setting


@dataclass(frozen=True)
class PoolConfig:
    """Which drafters decode together, and how one is picked for every cycle."""

    drafters: list[str] = setting([], "names or folders; empty: all of the target, and retrieval")
    selector: str = setting("hedgespec", "see drafterforge/selectors/README.md")
    options: dict[str, Any] = setting({}, "its own, such as {estimator: ratio_rb}")
    every: int = setting(1, "cycles between passes in which all drafters read what is committed")
    scheduler: str = setting("", "name or folder of a policy that chooses the trees; empty: one tree")
    router: str = setting("", "name or folder of a router that advises the selector; empty: none")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_at_least("pool.every", self.every, 1)
