"""Config of a pool of drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drafterforge.config.fields import setting

DEFAULT_SELECTOR = "hedgespec"


@dataclass(frozen=True)
class PoolConfig:
    """The drafters of a pool, and how one is picked for every cycle."""

    drafters: list[str] = setting(
        [], "names or folders of drafters; empty: the target's drafters and retrieval", input="decoders"
    )
    selector: str = setting(
        "",
        "what picks the drafter of a cycle; empty: what the bundle says, else hedgespec; docs/selectors.md lists the "
        "choices",
    )
    options: dict[str, Any] = setting({}, "options of the selector, such as {estimator: ratio_rb}")
    scheduler: str = setting(
        "", "name or folder of a policy that chooses the trees; empty: a static tree", input="policies"
    )
    router: str = setting("", "name or folder of a router that advises the selector; empty: none", input="routers")

    @property
    def selector_name(self) -> str:
        """The selector of a pool that is no bundle's."""
        return self.selector or DEFAULT_SELECTOR
