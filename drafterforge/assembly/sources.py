"""The interface by which pools look up drafters, policies and routers: in a runs folder or in a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from drafterforge.drafters.base import DrafterSource
from drafterforge.targets.load import Target


@dataclass(frozen=True)
class DrafterSummary:
    """What a drafter is chosen by before it is loaded."""

    name: str
    kind: str  # name of a `DrafterKind`
    domain: str
    rank: int  # see `DrafterKind.pool_rank`


class PoolSource(Protocol):
    """Drafters, policies and routers of one target, by name; their files have been checked."""

    target: Target
    quiet: bool  # print no notes while opening

    def pool(self) -> list[str]:
        """Names of the default pool's drafters."""
        ...

    def named(self) -> list[str]:
        """Drafters and hybrids that the user named for decoding; empty: none, so all are meant."""
        ...

    def unproven(self) -> list[str]:
        """Drafters that the default pool leaves out, because no measurement shows that they gain anything."""
        ...

    def learned(self) -> set[str]:
        """Drafters that were learned from a server's traffic."""
        ...

    def other_taps(self) -> list[str]:
        """Drafters that the default pool leaves out, because they read other layers than the target is tapped at."""
        ...

    def summaries(self) -> list[DrafterSummary]:
        """All drafters that have files, in the order of their ranks."""
        ...

    def drafter(self, name: str) -> DrafterSource:
        """Where a drafter's files are."""
        ...

    def identity(self, name: str) -> tuple[str, str]:
        """A drafter's recorded name, and the fingerprint of its weights, to which policies are bound."""
        ...

    def part(self, name: str, kind: str) -> Path:
        """The folder of a policy (kind=policy) or a router (kind=router)."""
        ...

    def default_router(self) -> Path | None:
        """The folder of the router that advises `drafter=auto`; None: there is none."""
        ...

    def cost_folders(self) -> list[Path]:
        """Folders with costs of the target that were measured elsewhere, see `verify_costs`."""
        ...
