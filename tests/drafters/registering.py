"""Registers drafter kinds that the package does not have, for the time of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from drafterforge.config import catalogue
from drafterforge.config.drafter import DRAFTERS
from drafterforge.drafters import registry
from drafterforge.drafters.base import DrafterKind, DrafterSource
from tests.drafters.bigram import FILE, BigramKind


@contextmanager
def registered(kind: DrafterKind | None = None) -> Iterator[DrafterKind]:
    """Registers a kind, the bigram kind by default, and removes it afterwards."""
    kind = kind or BigramKind()
    registry.register(kind)
    try:
        yield kind
    finally:
        del registry.KINDS[kind.name], DRAFTERS[kind.name], catalogue.REGISTERED["drafter"][kind.name]


def written(folder: Path, table: Tensor) -> DrafterSource:
    """A drafter's files in a folder."""
    save_file({"table": table}, folder / FILE)
    return DrafterSource("bigrams", BigramKind.name, folder)
