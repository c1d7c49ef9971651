"""Which devices are worked like a GPU: one answer for every branch."""

from __future__ import annotations

import torch


def on_gpu(device: torch.device | str) -> bool:
    """Whether a device works asynchronously, as CUDA does, so that a read waits for it.

    `meta` counts as one: its tensors have shapes but no values, and rehearse the GPU's side of every branch.
    """
    return torch.device(device).type in ("cuda", "meta")


def autocast_device(device: torch.device) -> str:
    """The type that `torch.autocast` takes for a device; it refuses `meta`."""
    return "cuda" if on_gpu(device) else device.type
