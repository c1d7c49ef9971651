"""The only list of drafter kinds, one line each."""

from __future__ import annotations

from drafterforge.config.drafter import register_drafter
from drafterforge.drafters.base import Drafter, DrafterKind
from drafterforge.drafters.block.kind import BlockKind
from drafterforge.drafters.causal_lm.kind import CausalLMKind
from drafterforge.drafters.eagle3.kind import Eagle3Kind
from drafterforge.drafters.hybrid.kind import HybridKind
from drafterforge.drafters.retrieval.kind import RetrievalKind
from drafterforge.errors import ConfigError, DrafterforgeError, quote

KINDS: dict[str, DrafterKind] = {}


def register(kind: DrafterKind) -> None:
    """Make a kind available to all commands, and as `drafter=NAME` of `train-drafter`."""
    KINDS[kind.name] = kind
    if kind.trained:
        register_drafter(kind.name, kind.config_class)


for _kind in (
    Eagle3Kind(),
    CausalLMKind(),
    RetrievalKind(),
    HybridKind(),
    BlockKind(),
):
    register(_kind)

DEFAULT = next(iter(KINDS))  # of manifests without a kind, and of the default tree without a drafter


def kind_named(name: str) -> DrafterKind:
    """The kind of this name or alias; ConfigError if there is none."""
    for kind in KINDS.values():
        if name == kind.name or name in kind.aliases:
            return kind
    raise ConfigError(
        f"there is no kind of drafter {name[:60]!r}; have {', '.join(KINDS)}; register one of another "
        "package first, see docs/add-a-drafter.md"
    )


def trained_kind(name: str) -> DrafterKind:
    """The trainable kind of this name; ConfigError if there is none."""
    trained = [kind.name for kind in KINDS.values() if kind.trained]
    if name not in trained:
        raise ConfigError(f"drafter.kind must be one of {', '.join(trained)}, got {name!r}")
    return KINDS[name]


def kind_of(drafter: Drafter, name: str = "drafter") -> DrafterKind:
    """The kind of a loaded drafter; DrafterforgeError for any other object.  name: of the drafter, in the error."""
    kind = getattr(type(drafter), "kind", None)
    if not isinstance(drafter, Drafter) or kind not in KINDS:
        raise DrafterforgeError(
            f"{name!r} is of type {type(drafter).__name__}, not a drafter; wanted one of kind {', '.join(KINDS)}, "
            "opened with drafterforge.assembly.pools.open_pool"
        )
    return KINDS[kind]


def manifest_kind(config: dict) -> str:
    """Name of the kind in a manifest's config, which may be forged: then there is no kind of this name."""
    drafter = config.get("drafter", {})
    kind = drafter.get("kind", DEFAULT) if isinstance(drafter, dict) else drafter
    return kind if isinstance(kind, str) else quote(kind)
