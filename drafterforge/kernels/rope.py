"""Rotary position embedding, rotate-half convention of the Llama and Qwen families."""

from __future__ import annotations

import torch
from torch import Tensor


class RopeTable:
    """cos and sin of positions; on a CPU from a table that grows on demand.

    inv_freq: [D/2], fp32, as `transformers` computes it from the rope parameters; scaling: its attention factor.
    """

    def __init__(self, inv_freq: Tensor, scaling: float = 1.0) -> None:
        self.inv_freq = inv_freq.detach().float()
        self.scaling = scaling
        self.cos = self.sin = inv_freq.new_empty(0, inv_freq.numel(), dtype=torch.float32)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos, sin of positions [...], each [..., 1, D/2] to broadcast over heads."""
        if self.inv_freq.device != positions.device:
            self.inv_freq, self.cos = self.inv_freq.to(positions.device), self.cos[:0]
        if positions.device.type == "cpu":
            self.grow(int(positions.max()) + 1 if positions.numel() else 0)
            cos, sin = self.cos[positions], self.sin[positions]
        else:  # looking up the largest position would stop the device
            cos, sin = self._angles(positions)
        return cos.to(dtype).unsqueeze(-2), sin.to(dtype).unsqueeze(-2)

    def grow(self, length: int) -> None:
        """Make the table hold at least `length` positions."""
        if length > self.cos.shape[0]:
            rounded = -(-length // 1024) * 1024
            self.cos, self.sin = self._angles(torch.arange(rounded, device=self.inv_freq.device))

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """fp32 cos and sin, [..., D/2]."""
        angles = positions[..., None].float() * self.inv_freq
        return angles.cos() * self.scaling, angles.sin() * self.scaling


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., heads, D] by cos, sin [..., 1, D/2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
