"""Default tree shapes of devices and kinds of drafters."""

from __future__ import annotations

import torch

from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.registry import DEFAULT, kind_named
from drafterforge.tree.grow import TreeShape


def default_shape(device: torch.device, dtype: torch.dtype, kind: str = DEFAULT) -> TreeShape:
    """The default shape of a kind of drafter on a device; see `DrafterKind.default_shape`."""
    return kind_named(kind).default_shape(device, dtype)


def choose_shape(config: RuntimeConfig, device: torch.device, dtype: torch.dtype, kind: str = DEFAULT) -> TreeShape:
    """The configured shape; numbers that are null come from the default shape."""
    default = default_shape(device, dtype, kind)
    numbers = {key: getattr(config, key) for key in ("num_tokens", "depth", "top_k")}
    return TreeShape(**{key: getattr(default, key) if value is None else value for key, value in numbers.items()})
