"""The target's outputs for the tokens of one request, recorded while it is decoded.

Axes: C committed tokens, H hidden of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RowOutputs:
    """Features and final states of the committed tokens, which verification has computed; in half precision."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor]] = []

    def add(self, features: Tensor, states: Tensor) -> None:
        """Add features [C, 3H] and states [C, H] of the next tokens."""
        half = torch.bfloat16 if features.dtype in (torch.float32, torch.float64) else features.dtype
        self.parts.append((features.to(half, copy=True), states.to(half, copy=True)))

    def join(self, count: int) -> tuple[Tensor, Tensor]:
        """Features [C, 3H] and states [C, H] of the first `count` tokens, in the host's memory."""
        features, states = (torch.cat(parts)[:count].cpu() for parts in zip(*self.parts, strict=True))
        return features, states
