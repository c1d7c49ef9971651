"""The kinds of drafters: one line for each; nowhere else are they listed."""

from __future__ import annotations

from drafterforge.config.drafter import register_drafter
from drafterforge.drafters.base import Drafter, DrafterKind
from drafterforge.drafters.causal_lm.kind import CausalLMKind
from drafterforge.drafters.eagle3.kind import Eagle3Kind
from drafterforge.drafters.hybrid.kind import HybridKind
from drafterforge.drafters.retrieval.kind import RetrievalKind
from drafterforge.errors import ConfigError, DrafterforgeError

KINDS: dict[str, DrafterKind] = {}


def register(kind: DrafterKind) -> None:
    """Make a kind known to every command, and `drafter=NAME` of `train-drafter`."""
    KINDS[kind.name] = kind
    if kind.trained:
        register_drafter(kind.name, kind.config_class)


for _kind in (
    Eagle3Kind(),
    CausalLMKind(),
    RetrievalKind(),
    HybridKind(),
):
    register(_kind)

DEFAULT = next(iter(KINDS))  # of manifests that name none, and of shapes where nothing drafts


def kind_named(name: str) -> DrafterKind:
    """The kind of this name; ConfigError if there is none."""
    for kind in KINDS.values():
        if name == kind.name or name in kind.aliases:
            return kind
    raise ConfigError(f"there is no kind of drafter {name[:60]!r}; have {', '.join(KINDS)}")


def trained_kind(name: str) -> DrafterKind:
    """The kind that `drafter.kind` of `train-drafter` names; ConfigError if none of this name is trained."""
    trained = [kind.name for kind in KINDS.values() if kind.trained]
    if name not in trained:
        raise ConfigError(f"drafter.kind must be one of {', '.join(trained)}, got {name!r}")
    return KINDS[name]


def kind_of(drafter: Drafter, name: str = "drafter") -> DrafterKind:
    """The kind of an opened drafter; DrafterforgeError for what is no drafter.  name: what it is called."""
    kind = getattr(type(drafter), "kind", None)
    if not isinstance(drafter, Drafter) or kind not in KINDS:
        raise DrafterforgeError(
            f"{name!r} is of type {type(drafter).__name__}, not a drafter; wanted one of kind {', '.join(KINDS)}, as "
            "drafterforge.assembly.pools.open_pool opens them"
        )
    return KINDS[kind]


def manifest_kind(config: dict) -> str:
    """The kind that a manifest's config names."""
    return config.get("drafter", {}).get("kind", DEFAULT)
