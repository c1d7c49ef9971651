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
MATRIX_WORDS = 16  # 4-byte words of an input in a register of the matrix unit, which takes multiples of them
MOST_BYTES = 65536  # inputs of a layer of 8 bits, whose sums must fit 32


class Projection(ctypes.Structure):
    """A linear layer as C reads it."""

    _fields_ = (
        *((name, c_void_p) for name in ("packed", "down", "up", "bias", "scales", "offsets")),
        *((name, c_long) for name in ("depth", "columns", "rank", "experts", "down_stride", "up_stride")),
        *((name, c_int) for name in ("size", "down_size", "up_size", "rounds", "matrix")),
    )


class PackedLinear:
    """Weights [out, in] packed in the order of `df_project`; as bfloat16 if that is exact for every weight."""

    experts = 1  # that divide the rows

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
        words = self.depth * self.size / 4  # of an input, as the matrix unit reads it
        self.matrix = (self.rounds or self.size == 1) and words % MATRIX_WORDS == 0 and native.multiplies_matrices()
        self.bias = None if bias is None else bias.contiguous()
        self.scales = self.offsets = None
        self.packed = self._pack_bytes(weight) if self.size == 1 else self._pack(weight.contiguous())
        parts = native.address(self.packed), 0, 0, *map(native.address, (self.bias, self.scales, self.offsets))
        shape = self.depth, self.out, 0, 1, 0, 0
        self.projection = Projection(*parts, *shape, self.size, 0, 0, self.rounds, self.matrix)

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
    """Packed weights with a low-rank addition, or with one of each of several experts, who divide the rows in order."""

    def __init__(self, base: PackedLinear, down: Tensor, up: Tensor) -> None:
        """down: [r, in], and up: [out, r], or of E experts, [E, r, in] and [E, out, r]."""
        rank = down.shape[-2]
        if (down.shape[-1], up.shape[-2:]) != (base.depth, (base.out, rank)) or down.shape[:-2] != up.shape[:-2]:
            raise ValueError(f"{list(up.shape)} @ {list(down.shape)} cannot be added to [{base.out}, {base.depth}]")
        self.base, self.down, self.up = base, PackedLinear(_in_panels(down), None), PackedLinear(_in_panels(up), None)
        self.out, self.depth, self.any_rows = base.out, base.depth, base.any_rows
        self.experts = 1 if down.dim() == 2 else len(down)
        of, packed = base.projection, (self.down, self.up)
        addresses = map(native.address, (base.packed, *(part.packed for part in packed)))
        strides = (part.packed.nbytes // self.experts for part in packed)
        shape = base.depth, base.out, rank, self.experts, *strides
        kinds = base.size, *(part.size for part in packed), base.rounds, base.matrix
        self.projection = Projection(*addresses, of.bias, of.scales, of.offsets, *shape, *kinds)

    def __call__(self, x: Tensor) -> Tensor:
        """x @ (weight + up @ down).T (+ bias) for contiguous x [N, in]; N is a multiple of the number of experts."""
        if x.shape[0] % self.experts:
            raise ValueError(f"{x.shape[0]} rows cannot be divided among {self.experts} experts")
        return project(self.projection, x)


def _in_panels(weight: Tensor) -> Tensor:
    """Weights [out, in], or those of experts [E, out, in] below each other, each from a panel of its own on."""
    if weight.dim() == 2:
        return weight
    return F.pad(weight, (0, 0, 0, -weight.shape[1] % native.library().df_panel())).flatten(0, 1)


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
