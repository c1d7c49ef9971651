"""A preallocated key-value cache that grows by blocks; rows of a batch may have different lengths.

Axes: L layers, B batch, H key heads, S slots, D head width, T new tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256


class KeyValueCache:
    """Keys and values of all layers in one tensor, [L, 2, B, H, S, D]; the caller decides the slots written."""

    def __init__(
        self,
        num_layers: int,
        batch: int,
        num_heads: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.data = torch.zeros(num_layers, 2, batch, num_heads, 0, width, dtype=dtype, device=device)
        self.start = 0  # first slot of the tokens of the next forward pass
        self.slots: Tensor | None = None  # [B, T] slots of the next pass when rows differ in length
        self.used = 0  # slots that attention reads

    def reserve(self, slots: int) -> None:
        """Make room for `slots` slots, keeping what is stored."""
        have = self.data.shape[4]
        if slots <= have:
            return
        self.grow(-(-max(slots, have + have // 2) // BLOCK) * BLOCK)

    def grow(self, slots: int) -> None:
        """Make room for exactly `slots` slots, at least as many as there are, keeping what is stored."""
        have = self.data.shape[4]
        if slots == have:
            return
        grown = self.data.new_zeros(*self.data.shape[:4], slots, self.data.shape[5])
        grown[:, :, :, :, :have] = self.data
        self.data = grown

    def place(self, start: int, count: int) -> None:
        """The next pass writes slots [start, start + count) of every row."""
        self.start, self.slots, self.used = start, None, start + count
        self.reserve(self.used)

    def place_ragged(self, slots: Tensor, used: int) -> None:
        """The next pass writes row b's token t to slots[b, t], [B, T]; attention reads `used` slots."""
        self.slots, self.used = slots, used
        self.reserve(used)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [B, T, H, D]; return all used keys and values, [B, H, used, D]."""
        return self.write_both(layer, torch.stack((k, v), dim=2))

    def write_both(self, layer: int, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, T, 2, H, D], keys first; return all used keys and values, [B, H, used, D]."""
        stored = self.data[layer]
        if self.slots is None:
            stored[:, :, :, self.start : self.used] = keys_values.permute(2, 0, 3, 1, 4)
        else:
            rows = torch.arange(keys_values.shape[0], device=keys_values.device)[:, None]
            stored[:, rows, :, self.slots] = keys_values
        used = stored[:, :, :, : self.used]
        return used[0], used[1]

    def move(self, sources: Tensor, start: int) -> None:
        """Copy slots `sources` [A] to [start, start + A) in every row and layer; gathered first, so overlap is safe."""
        self.data[:, :, :, :, start : start + sources.numel()] = self.data[:, :, :, :, sources]

    def move_rows(self, rows: list[int], sources: list[int], destinations: list[int]) -> None:
        """Copy slot sources[i] of row rows[i] to destinations[i] in every layer; gathered first, so overlap is safe."""
        at, of, to = (torch.tensor(part, device=self.data.device) for part in (rows, sources, destinations))
        self.data[:, :, at, :, to] = self.data[:, :, at, :, of]

    def keep_rows(self, rows: Tensor) -> None:
        """Keep only the given rows of the batch, [B']."""
        self.data = self.data[:, :, rows]

    def put_rows(self, other: KeyValueCache, places: list[int]) -> None:
        """Take over the rows of another cache: the first into the given places, the rest as new rows."""
        slots = max(self.data.shape[4], other.data.shape[4])
        self.grow(slots)
        other.grow(slots)
        if places:
            self.data[:, :, places] = other.data[:, :, : len(places)]
        if len(places) < other.data.shape[2]:
            self.data = torch.cat((self.data, other.data[:, :, len(places) :]), dim=2)
