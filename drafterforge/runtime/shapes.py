"""Default tree shapes of devices and kinds of drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import torch

from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.registry import DEFAULT, kind_named
from drafterforge.errors import DrafterforgeError
from drafterforge.tree.grow import TreeShape

ROOT_ALONE = TreeShape(num_tokens=1, depth=0, top_k=1)  # the tree of a cycle without a drafter


def default_shape(device: torch.device, dtype: torch.dtype, kind: str = DEFAULT) -> TreeShape:
    """The default shape of a kind of drafter on a device; see `DrafterKind.default_shape`."""
    return kind_named(kind).default_shape(device, dtype)


def choose_shape(config: RuntimeConfig, device: torch.device, dtype: torch.dtype, kind: str = DEFAULT) -> TreeShape:
    """The configured shape; numbers that are null come from the default shape."""
    default = default_shape(device, dtype, kind)
    numbers = {key: getattr(config, key) for key in ("num_tokens", "depth", "top_k")}
    return TreeShape(**{key: getattr(default, key) if value is None else value for key, value in numbers.items()})


def bounds(shapes: Sequence[TreeShape]) -> TreeShape:
    """The shape with the largest of every number."""
    return TreeShape(*(max(getattr(shape, key) for shape in shapes) for key in ("num_tokens", "depth", "top_k")))


def within(shape: TreeShape, largest: TreeShape) -> TreeShape:
    """The shape without what exceeds the largest one."""
    return TreeShape(*map(min, astuple(shape), astuple(largest)))


def require_within(shape: TreeShape, largest: TreeShape) -> None:
    """Refuse a shape that exceeds the largest one."""
    if within(shape, largest) != shape:
        raise DrafterforgeError(f"this batch decodes with trees up to {largest}, got {shape}")


def next_power(count: int) -> int:
    """The least power of 2 that is at least `count`, which is positive."""
    return 1 << (count - 1).bit_length()
