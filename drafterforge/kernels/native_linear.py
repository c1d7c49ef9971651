"""Linear layers with weights packed for native.c, of 32, 16 or 8 bits, with low-rank additions.

All results are batch-invariant.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_long, c_void_p

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.kernels import native

NATIVE_ROWS = 256  # rows up to which native.c is faster than BLAS in float32 (AVX-512, AVX2), see bench_kernels.py
MOST_BYTES = 65536  # inputs of a layer of 8 bits, whose sums must fit 32


class Projection(ctypes.Structure):
    """A linear layer as C reads it."""

    _fields_ = (
        *((name, c_void_p) for name in ("packed", "down", "up", "bias", "scales", "offsets")),
        *((name, c_long) for name in ("depth", "columns", "rank")),
        *((name, c_int) for name in ("size", "down_size", "up_size", "rounds")),
    )


class PackedLinear:
    """Weights [out, in] packed in the order of `df_project`; as bfloat16 if that is exact for every weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rounds: bool = False, int8: bool = False) -> None:
        """rounds: round inputs to bfloat16 and multiply in it, adding in float32, if the processor can.

        int8: round inputs, and weights that are bfloat16 numbers, to 8 bits and multiply these, if the processor can.
        """
        self.out, self.depth = weight.shape
        half = self.depth % 2 == 0 and bool((weight.bfloat16().to(weight.dtype) == weight).all())
        self.size = 2 if half else 4  # bytes of a weight
        if int8 and half and self.depth % 4 == 0 and self.depth <= MOST_BYTES and native.multiplies_bytes():
            self.size = 1
        self.rounds = rounds and self.size == 2 and native.multiplies_bfloat16()
        self.bias = None if bias is None else bias.contiguous()
        self.scales = self.offsets = None
        self.packed = self._pack_bytes(weight) if self.size == 1 else self._pack(weight.contiguous())
        parts = native.address(self.packed), 0, 0, *map(native.address, (self.bias, self.scales, self.offsets))
        self.projection = Projection(*parts, self.depth, self.out, 0, self.size, 0, 0, self.rounds)

    @property
    def any_rows(self) -> bool:
        """Whether any number of rows is computed here, because torch would round differently."""
        return self.rounds or self.size == 1

    def _pack(self, weight: Tensor) -> Tensor:
        panel = native.library().df_panel()
        columns = -(-self.out // panel) * panel
        packed = torch.empty(columns * self.depth * self.size // 4, dtype=torch.int32)
        pack = native.library().df_pack_half if self.size == 2 else native.library().df_pack_full
        pack(weight.data_ptr(), packed.data_ptr(), self.out, self.depth)
        return packed

    def _pack_bytes(self, weight: Tensor) -> Tensor:
        """[out / panel, in / 4, panel, 4], in steps of a 127th of each column's largest magnitude."""
        panel = native.library().df_panel()
        weight = F.pad(weight.float(), (0, 0, 0, -self.out % panel))
        largest = weight.abs().amax(dim=1)
        steps = (weight * (127.0 / largest.clamp(min=1e-30))[:, None]).round()
        self.scales, self.offsets = largest / 127.0, (128.0 * steps.double().sum(dim=1)).int()
        return steps.to(torch.int8).view(-1, panel, self.depth // 4, 4).transpose(1, 2).contiguous()

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """x @ weight.T (+ bias) (+ added) for contiguous x [N, in] and added [N, out]."""
        return project(self.projection, x, added)


class PackedAddition:
    """Packed weights with a low-rank addition."""

    def __init__(self, base: PackedLinear, down: Tensor, up: Tensor) -> None:
        """down: [r, in].  up: [out, r]."""
        if (down.shape[1], up.shape) != (base.depth, (base.out, down.shape[0])):
            raise ValueError(f"{list(up.shape)} @ {list(down.shape)} cannot be added to [{base.out}, {base.depth}]")
        self.base, self.down, self.up = base, PackedLinear(down, None), PackedLinear(up, None)
        self.out, self.depth, self.any_rows = base.out, base.depth, base.any_rows
        of, parts = base.projection, (base.packed, self.down.packed, self.up.packed)
        sizes = base.size, self.down.size, self.up.size
        rest = of.bias, of.scales, of.offsets, base.depth, base.out, self.down.out
        self.projection = Projection(*map(native.address, parts), *rest, *sizes, base.rounds)

    def __call__(self, x: Tensor) -> Tensor:
        """x @ (weight + up @ down).T (+ bias) for contiguous x [N, in]."""
        return project(self.projection, x)


def project(by: Projection, x: Tensor, added: Tensor | None = None) -> Tensor:
    """What a packed layer makes of contiguous x [N, in] (+ added), [N, out]."""
    rows = x.shape[0]
    native.require(x, (rows, by.depth))
    if added is not None:
        native.require(added, (rows, by.columns))
    out = torch.empty(rows, by.columns)
    arguments = ctypes.addressof(by), x.data_ptr(), native.address(added), out.data_ptr(), rows, torch.get_num_threads()
    if native.library().df_project(*arguments):
        raise MemoryError(f"a linear layer of {rows} rows")
    return out
