"""Load drafters from their folders; LoRA experts share the weights of their generalist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from drafterforge.config.names import parse_hybrid, parts_of
from drafterforge.drafters.base import Drafter, DrafterSource
from drafterforge.drafters.hybrid.kind import combine
from drafterforge.drafters.registry import kind_named
from drafterforge.targets.load import Target


def open_drafters(
    sources: Sequence[DrafterSource], target: Target, shared: dict[Any, Any] | None = None
) -> dict[str, Drafter]:
    """Loaded drafters by name; the caller has checked the hashes of their folders.

    shared: weights that several calls share; None: those of this call alone.
    """
    shared = {} if shared is None else shared
    return {source.name: kind_named(source.kind).load(source, target, shared) for source in sources}


def open_named(
    names: Sequence[str],
    source_of: Callable[[str], DrafterSource],
    target: Target,
    shared: dict[Any, Any] | None = None,
) -> dict[str, Drafter]:
    """Loaded drafters by name; a name such as `general+retrieval` is a hybrid.  shared: see `open_drafters`."""
    opened = open_drafters([source_of(part) for part in parts_of(names)], target, shared)
    drafters = {}
    for name in names:
        parts = parse_hybrid(name)
        drafters[name] = combine(name, *(opened[part] for part in parts)) if parts else opened[name]
    return drafters
