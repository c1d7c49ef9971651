"""Tree shapes that pay on a kind of device, when none is asked for."""

from __future__ import annotations

import torch

from drafterforge.config.runtime import RuntimeConfig
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.tree.grow import TreeShape


def default_shape(device: torch.device, dtype: torch.dtype, kind: str = "eagle3") -> TreeShape:
    """A static shape for the device: how many rows cost about as much as one decides the width.

    EAGLE-3's 60/8/10 on a GPU; a CPU with AMX verifies 16 nodes in bfloat16 at 1.2 times one token; without it every
    row and every level costs: of seven shapes tried on held-out prompts, none was faster than 6/3/2, with the kernels
    of native.c or without; with a causal LM, whose level costs a quarter of the target's forward (its head is as
    large), 6/2/3 was.
    """
    if kind == "retrieval":  # levels cost nothing
        return TreeShape(num_tokens=32 if device.type == "cuda" or has_matrix_unit("cpu") else 12, depth=10, top_k=4)
    if kind == "merged":  # bounds: what a level and a node are worth decides
        return TreeShape(num_tokens=60 if device.type == "cuda" else 16, depth=10, top_k=2)
    if device.type == "cuda":
        return TreeShape(num_tokens=60, depth=8, top_k=10)
    if dtype == torch.bfloat16 and has_matrix_unit("cpu"):
        return TreeShape(num_tokens=16, depth=5, top_k=4)
    if kind == "causal_lm":
        return TreeShape(num_tokens=6, depth=2, top_k=3)
    return TreeShape(num_tokens=6, depth=3, top_k=2)


def choose_shape(config: RuntimeConfig, device: torch.device, dtype: torch.dtype, kind: str = "eagle3") -> TreeShape:
    """The configured shape; what is null comes from the default for the device and the kind of drafter."""
    default = default_shape(device, dtype, kind)
    chosen = {key: getattr(config, key) for key in ("num_tokens", "depth", "top_k")}
    return TreeShape(**{key: getattr(default, key) if value is None else value for key, value in chosen.items()})
