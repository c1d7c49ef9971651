"""Tree shapes that pay on a kind of device, when none is asked for."""

from __future__ import annotations

import torch

from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.registry import DEFAULT, kind_named
from drafterforge.tree.grow import TreeShape


def default_shape(device: torch.device, dtype: torch.dtype, kind: str = DEFAULT) -> TreeShape:
    """A static shape for the device and the kind of drafter; see `DrafterKind.default_shape`."""
    return kind_named(kind).default_shape(device, dtype)


def choose_shape(config: RuntimeConfig, device: torch.device, dtype: torch.dtype, kind: str = DEFAULT) -> TreeShape:
    """The configured shape; what is null comes from the default for the device and the kind of drafter."""
    default = default_shape(device, dtype, kind)
    chosen = {key: getattr(config, key) for key in ("num_tokens", "depth", "top_k")}
    return TreeShape(**{key: getattr(default, key) if value is None else value for key, value in chosen.items()})
