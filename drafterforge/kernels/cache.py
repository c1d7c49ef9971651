"""A preallocated key-value cache that grows by blocks; rows of a batch may have different lengths.

Axes: L layers, B batch, H key heads, S slots, D head width, T new tokens.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drafterforge.kernels import native
from drafterforge.kernels.devices import on_gpu

BLOCK = 256  # slots
PAGE = 4096  # bytes, on most systems
ALIGNMENT = 64  # bytes, as torch has it: vectors are read from one line of a cache
MAX_SPARE_BYTES = 1 << 30

RowAndSlot = tuple[int, int]


class KeyValueCache:
    """Keys and values of all layers in one tensor, [L, 2, B, H, S, D]; the caller decides the slots written.

    Rows whose prompts are still being read are the last ones: passes and moves leave them alone.
    """

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
        self.memory = self.data  # with room for more rows, so that a row that joins or leaves copies no other
        self.num_opened = 0  # rows at the end whose prompts are being read
        self.filled = 0  # slots that may have been written; the rest need no copy
        self.start = 0  # first slot of the tokens of the next forward pass
        self.slots: Tensor | None = None  # [B, T] slots of the next pass when rows differ in length
        self.used = 0  # slots that attention reads

    def reserve(self, slots: int) -> None:
        """Make room for at least `slots` slots; stored keys and values stay."""
        size = self.data.shape[4]
        if slots > size:
            self.grow(_in_blocks(max(slots, size + size // 2)))

    def grow(self, slots: int) -> None:
        """Make room for exactly `slots` slots, no fewer than there are; stored keys and values stay."""
        size = self.data.shape[4]
        if slots == size:
            return
        self._allocate(self.memory.shape[2], slots)

    def _allocate(self, rows: int, slots: int, fresh: bool = False) -> None:
        """Move to other memory for `rows` rows of `slots` slots each.  fresh: see `zeros`."""
        old, batch = self.data, self.data.shape[2]
        self.memory = zeros((*old.shape[:2], rows, old.shape[3], slots, old.shape[5]), old, fresh)
        self.data = self.memory[:, :, :batch]
        self.data[:, :, :, :, : self.filled] = old[:, :, :, :, : self.filled]

    def replace(self, data: Tensor) -> None:
        """Hold these keys and values of all rows, [L, 2, B, H, S, D], without a copy."""
        self.data = self.memory = data
        self.filled = data.shape[4]

    def expect_rows(self, rows: int) -> None:
        """Let the first memory of an empty cache have room for `rows` rows."""
        self.memory = self.data.new_zeros(*self.data.shape[:2], rows, *self.data.shape[3:])

    def open_row(self, slots: int, fresh: bool = False) -> None:
        """Append a row with room for a prompt of `slots` slots that is read next, and for an answer.

        fresh: see `zeros`.
        """
        batch, room, size = self.data.shape[2], self.memory.shape[2], self.data.shape[4]
        needed = max(size, _in_blocks(slots) + 2 * BLOCK)
        if batch == room or needed > size:
            rows = max(room, 2 * batch if batch == room else 0, 1)
            self._allocate(rows, needed, fresh)
        self.filled = max(self.filled, slots)
        self.data, self.num_opened = self.memory[:, :, : batch + 1], self.num_opened + 1

    def touch(self, start: int, end: int) -> None:
        """Read memory of slots [start, end) of every row: the first pass that reads new pages would wait for all."""
        if self.data.device.type == "cpu":
            slots_of_page = max(PAGE // (self.data.shape[5] * self.data.element_size()), 1)
            self.active[:, :, :, :, start:end:slots_of_page, :1].sum()

    def close_row(self, row: int) -> None:
        """Remove an opened row."""
        self._move_down([*range(row), *range(row + 1, self.data.shape[2])])
        self.num_opened -= 1

    def admit_row(self, row: int) -> None:
        """Turn an opened row, whose prompt has been read, into a row of the batch."""
        first = self.data.shape[2] - self.num_opened
        if row != first:
            order = [*range(first), row, *(opened for opened in range(first, self.data.shape[2]) if opened != row)]
            self.replace(self.data[:, :, self._index(order)])
        self.num_opened -= 1

    def rows(self, first: int, last: int) -> KeyValueCache:
        """A cache of some rows, which shares this one's memory until either has to grow."""
        part = object.__new__(KeyValueCache)
        part.replace(self.data[:, :, first:last])
        part.num_opened, part.start, part.slots, part.used = 0, 0, None, 0
        return part

    def copy_rows(self, rows: Tensor) -> KeyValueCache:
        """A cache with copies of the given rows, [B']."""
        part = self.rows(0, 0)
        part.replace(self.data[:, :, rows])
        return part

    @property
    def active(self) -> Tensor:
        """Keys and values of the rows that are not just opened, [L, 2, B', H, S, D]."""
        return self.data[:, :, : self.data.shape[2] - self.num_opened] if self.num_opened else self.data

    def set_slots(self, start: int, count: int) -> None:
        """Let the next pass write slots [start, start + count) of every row."""
        self.start, self.slots = start, None
        self._use(start + count)

    def set_ragged_slots(self, slots: Tensor, used: int) -> None:
        """Let the next pass write row b's token t to slots[b, t], [B, T]; attention reads `used` slots."""
        self.slots = slots
        self._use(used)

    def _use(self, slots: int) -> None:
        self.used = slots
        self.reserve(slots)
        self.filled = max(self.filled, slots)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [B, T, H, D]; return all used keys and values, [B, H, used, D]."""
        return self.write_both(layer, torch.stack((k, v), dim=2))

    def write_both(self, layer: int, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, T, 2, H, D], keys first; return all used keys and values, [B, H, used, D]."""
        stored = self.active[layer]
        if self.slots is None:
            stored[:, :, :, self.start : self.used] = keys_values.permute(2, 0, 3, 1, 4)
        else:
            rows = torch.arange(keys_values.shape[0], device=keys_values.device)[:, None]
            stored[:, rows, :, self.slots] = keys_values
        used = stored[:, :, :, : self.used]
        return used[0], used[1]

    def move_rows(self, rows: list[int], sources: list[int], destinations: list[int]) -> None:
        """Copy slot sources[i] of row rows[i] to destinations[i] in every layer.

        sources: ascending in each row, none before its destination.
        """
        if on_gpu(self.data.device):
            row, source, destination = torch.tensor([rows, sources, destinations], device=self.data.device)
            self.data[:, :, row, :, destination] = self.data[:, :, row, :, source]
        elif native.library() is not None:
            native.move_slots(self.data, rows, sources, destinations)
        else:
            slots = self.data.permute(2, 4, 0, 1, 3, 5)
            _copy_one_by_one(slots, list(zip(rows, sources, strict=True)), list(zip(rows, destinations, strict=True)))

    def _index(self, rows: Sequence[int]) -> Tensor:
        """Row numbers on the cache's device; torch would index by a list through a tensor on the host."""
        return torch.tensor(list(rows), dtype=torch.long, device=self.data.device)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep only the given rows of the batch, and the opened ones; a row that stays where it is is not copied.

        rows: in any order, each at most once.
        """
        count = self.data.shape[2]
        self._move_down([*rows, *range(count - self.num_opened, count)])

    def _move_down(self, rows: Sequence[int]) -> None:
        """Let row i be what row rows[i] was."""
        after = {old: new for new, old in enumerate(rows)}
        if any(after.get(new, -1) > new for new in range(len(rows))):  # its content would be lost before it moves
            self.replace(self.data[:, :, self._index(rows)])
            return
        for new, old in enumerate(rows):
            if new != old:
                self.data[:, :, new] = self.data[:, :, old]
        self.data = self.memory[:, :, : len(rows)]

    def put_rows(self, source: KeyValueCache, rows: list[int]) -> None:
        """Copy the rows of another cache: the first ones over `rows`, the rest as new rows."""
        count, new = self.data.shape[2], source.data.shape[2] - len(rows)
        self.grow(max(self.data.shape[4], source.data.shape[4]))
        self.filled = max(self.filled, source.filled)
        stored = source.data[:, :, :, :, : source.filled]
        if rows:
            self.data[:, :, self._index(rows), :, : source.filled] = stored[:, :, : len(rows)]
        if new:
            if count + new > self.memory.shape[2]:
                self._allocate(count + new, self.data.shape[4])
            self.data = self.memory[:, :, : count + new]
            self.data[:, :, count:, :, : source.filled] = stored[:, :, len(rows) :]


def _copy_one_by_one(slots: Tensor, sources: Sequence[RowAndSlot], destinations: Sequence[RowAndSlot]) -> None:
    """slots[destination] = slots[source], one after the other.

    Torch copies one slot in one thread.  It copies many in several, which then spin on the cores that `native.c` needs:
    on two cores, cycles took up to 15 % longer.
    """
    for source, destination in zip(sources, destinations, strict=True):
        if source != destination:
            slots[destination] = slots[source]


def _in_blocks(slots: int) -> int:
    return -(-slots // BLOCK) * BLOCK


def small_pages(size: int) -> np.ndarray:
    """`size` bytes of zeros, which the system clears page by page, at the first use of each.

    numpy asks for huge pages, which a cache touches all at once: decoding would pause until all of it is cleared.
    """
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


class SpareMemory:
    """Memory on the host that caches have given up, for later ones of a similar size: new pages are slow to get.

    At most twice as much as the largest cache had, and at most `MAX_SPARE_BYTES`: there is no room for more beside the
    caches of large batches.  Any thread may take memory, and give it back.
    """

    def __init__(self) -> None:
        self.buffers: list[np.ndarray] = []  # the largest first
        self.lock = threading.RLock()  # the collector may give a buffer back in the midst of `take`

    def take(self, size: int, fresh: bool = False) -> np.ndarray:
        """`size` bytes of zeros.  fresh: see `zeros`."""
        needed = size + ALIGNMENT
        buffer = None if fresh else self._take_spare(needed)
        if buffer is None:
            buffer = small_pages(needed)
        else:
            buffer[:needed] = 0
        first = -buffer.ctypes.data % ALIGNMENT
        memory = buffer[first : first + size]
        weakref.finalize(memory, self.give, buffer).atexit = False
        return memory

    def _take_spare(self, needed: int) -> np.ndarray | None:
        """The smallest spare buffer of at least `needed` bytes, and at most twice as many; None if there is none."""
        with self.lock:
            fitting = [spare for spare in self.buffers if needed <= len(spare) <= 2 * needed]
            if not fitting:
                return None
            self.buffers = [spare for spare in self.buffers if spare is not fitting[-1]]
            return fitting[-1]

    def give(self, buffer: np.ndarray) -> None:
        """Keep a buffer that nothing uses any more, if there is room."""
        if len(buffer) > MAX_SPARE_BYTES:
            return
        with self.lock:
            buffers = sorted([*self.buffers, buffer], key=len, reverse=True)
            limit, totals = min(2 * len(buffers[0]), MAX_SPARE_BYTES), itertools.accumulate(map(len, buffers))
            self.buffers = [spare for spare, total in zip(buffers, totals, strict=True) if total <= limit]


SPARE = SpareMemory()


def zeros(shape: tuple[int, ...], like: Tensor, fresh: bool = False) -> Tensor:
    """Zeros with the dtype and on the device of `like`.

    fresh: new pages, cleared one by one as they are written; used memory takes less time, but is cleared at once.
    """
    if like.device.type != "cpu" or 0 in shape:
        return like.new_zeros(shape)
    memory = SPARE.take(math.prod(shape) * like.element_size(), fresh)
    return torch.from_numpy(memory).view(like.dtype).view(shape)
