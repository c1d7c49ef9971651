"""The interface of what drafters, policies and routers are looked up in: a folder of runs, or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from drafterforge.drafters.base import DrafterSource
from drafterforge.targets.load import Target


class PoolSource(Protocol):
    """Looks up by name what one target decodes with; everything that it returns has been checked."""

    target: Target
    quiet: bool  # whether to print nothing about what is opened

    def pool(self) -> list[str]:
        """Names of the drafters that decode together where none are named."""
        ...

    def unproven(self) -> list[str]:
        """Drafters that decode with the others only where they are named."""
        ...

    def drafter(self, name: str) -> DrafterSource:
        """Where the files of one drafter are."""
        ...

    def weights(self, name: str) -> tuple[str, str]:
        """A drafter's recorded name, and the fingerprint of its weights that policies are bound to."""
        ...

    def part(self, name: str, kind: str) -> Path:
        """The folder of a policy (kind=policy) or a router (kind=router)."""
        ...
