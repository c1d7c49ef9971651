"""Rotary position embedding, rotate-half convention of the Llama and Qwen families."""

from __future__ import annotations

import torch
from torch import Tensor


class RopeTable:
    """Rotations of positions; on a CPU they come from a table that grows on demand.

    inv_freq: [D/2], fp32, as `transformers` computes it from the rope parameters; scaling: its attention factor.
    """

    def __init__(self, inv_freq: Tensor, scaling: float = 1.0) -> None:
        self.inv_freq = inv_freq.detach().float()
        self.scaling = scaling
        self.tables: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos [..., 1, 1, D/2] and (-sin, sin) [..., 1, 2, D/2] of positions [...], as `apply_rope` takes them."""
        if positions.device.type != "cpu":  # looking up the largest position would wait for the device
            return self._rotations(positions, dtype)
        cos, sin = self.table(positions, dtype)
        return cos[positions], sin[positions]

    def table(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The table on a CPU with at least these positions, for each cos [1, 1, D/2] and (-sin, sin) [1, 2, D/2]."""
        return self._table(int(positions.max()) + 1 if positions.numel() else 0, dtype)

    def _table(self, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotations of at least the first `length` positions."""
        if dtype not in self.tables or self.tables[dtype][0].shape[0] < length:
            rounded = -(-max(length, 1) // 1024) * 1024
            self.tables[dtype] = self._rotations(torch.arange(rounded), dtype)
        return self.tables[dtype]

    def _rotations(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        self.inv_freq = self.inv_freq.to(positions.device)
        angles = positions[..., None].float() * self.inv_freq
        cos, sin = (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)
        return cos[..., None, None, :], torch.stack((-sin, sin), dim=-2).unsqueeze(-3)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., heads, D] by rotations of `RopeTable`: halves (a, b) become (a cos - b sin, b cos + a sin)."""
    halves = x.view(*x.shape[:-1], 2, x.shape[-1] // 2) if x.is_contiguous() else x.unflatten(-1, (2, -1))
    return torch.addcmul(halves * cos, halves.flip(-2), sin).flatten(-2)


def beside_values(cos: Tensor, sin: Tensor, rotated: int, plain: int) -> tuple[Tensor, Tensor]:
    """Rotations [..., heads, 1 or 2, D/2] of `rotated` heads, and of `plain` heads after them that stay as they are."""
    heads = [-1] * (cos.dim() - 3)
    cos, sin = cos.expand(*heads, rotated, -1, -1), sin.expand(*heads, rotated, -1, -1)
    ones = torch.ones_like(cos[..., :1, :, :]).expand(*heads, plain, -1, -1)
    zeros = torch.zeros_like(sin[..., :1, :, :]).expand(*heads, plain, -1, -1)
    return torch.cat((cos, ones), dim=-3), torch.cat((sin, zeros), dim=-3)
