"""Linear layers with frozen weights, packed for native.c or for oneDNN."""

from __future__ import annotations

import functools
import time
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.kernels import native, native_linear
from drafterforge.kernels.devices import on_gpu
from drafterforge.kernels.dispatch import is_compiled, kernels_of
from drafterforge.kernels.invariant import MAX_ROWS, RowPlan, find_plan, trial_data

Packed = native_linear.PackedLinear | native_linear.PackedAddition

PLANS: dict[tuple, RowPlan] = {}  # by shape, dtype, device and kernel of a linear layer


@functools.cache
def computes_bfloat16(device_type: str) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware (AMX or AVX512-BF16 on a CPU)."""
    if on_gpu(device_type):
        return device_type == "meta" or torch.cuda.is_bf16_supported(including_emulation=False)
    if device_type != "cpu":
        return False
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    avx512 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return bool(amx() or avx512())


@functools.cache
def has_matrix_unit(device_type: str) -> bool:
    """Whether many rows of bfloat16 cost little more than one: tensor cores, or AMX on a CPU."""
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return computes_bfloat16(device_type) if device_type != "cpu" else bool(amx())


def decodes_with_matrix_unit() -> bool:
    """Whether many rows of bfloat16 weights cost little more than one while a CPU decodes: by native.c, or by torch."""
    return native.multiplies_matrices() if is_compiled() else has_matrix_unit("cpu")


@functools.cache
def multiplies_bfloat16_faster(device_type: str) -> bool:
    """Whether large products take less time in bfloat16 than in float32.

    With a matrix unit they do.  CPUs with AVX512-BF16 but no AMX differ, so there a trial of both decides.
    """
    if has_matrix_unit(device_type) or not computes_bfloat16(device_type):
        return has_matrix_unit(device_type)
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, runs = torch.ones(512, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype), []
        for _ in range(6):
            began = time.perf_counter()
            F.linear(x, weight)
            runs.append(time.perf_counter() - began)
        seconds[dtype] = min(runs)
    return seconds[torch.bfloat16] < 0.8 * seconds[torch.float32]


def _packing(weight: Tensor) -> tuple[int, torch.dtype] | None:
    """Fewest rows for which a packed weight beats `F.linear`, and the dtype to pack it in; None if it never does.

    Measured on two CPUs: with AMX a plain bfloat16 `F.linear` reorders its weight at every call, so packing always
    wins; in float32 one row is a matrix-vector product that streams the plain weight faster, and packing wins from
    two rows on.  A CPU without bfloat16 widens the numbers of every call, so they are widened once, and products
    rounded back: 16 rows then take a third of the time.
    """
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return None
    if weight.dtype == torch.bfloat16 and computes_bfloat16("cpu"):
        return 1, torch.bfloat16
    return (2, torch.float32) if weight.dtype in (torch.float32, torch.bfloat16, torch.float16) else None


class FrozenLinear:
    """x @ weight.T + bias for inference, [..., in] to [..., out]."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        pack: bool = True,
        rounds: bool = False,
        int8: bool = False,
    ) -> None:
        """rounds: inputs may be rounded to bfloat16, where the processor then multiplies faster.

        int8: inputs and weights may be rounded to 8 bits: half the bytes to read, for layers of drafters.
        """
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.native = kernels_of(self.weight).pack_linear(self.weight, self.bias, rounds, int8) if pack else None
        self.packing = _packing(self.weight) if pack and self.native is None else None
        if self.packing is not None:
            dtype = self.packing[1]
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.to(dtype).contiguous(), None)
            self.packed_bias = None if self.bias is None else self.bias.to(dtype)

    def __call__(self, x: Tensor, invariant: bool = False, added: Tensor | None = None) -> Tensor:
        """Apply to [..., in]; flattened first, since a non-contiguous 3-D input would copy the weight per row.

        invariant: a row's result does not depend on the number of rows.  added: [..., out], added to the result.
        """
        if self.computes_natively(x):
            if x.dim() == 2:
                return self.native(x, added)
            out = self.native(x.view(-1, x.shape[-1])).view(*x.shape[:-1], self.weight.shape[0])
            return out if added is None else added + out
        if x.dim() == 2 and not invariant and x.is_contiguous():
            out = self._apply(x)
        else:
            flat = x.reshape(-1, x.shape[-1]).contiguous()
            out = self.plan.apply(self._apply, flat) if invariant else self._apply(flat)
            out = out.view(*x.shape[:-1], out.shape[-1])
        return out if added is None else added + out

    def computes_natively(self, x: Tensor) -> bool:
        """Whether native.c multiplies x, without a copy."""
        return self.native is not None and self._suits_native(x) and x.is_contiguous()

    def _suits_native(self, x: Tensor) -> bool:
        return self.native.any_rows or x.numel() <= native_linear.NATIVE_ROWS * x.shape[-1]

    @property
    def plan(self) -> RowPlan:
        """Row counts with bit-equal rows, found once for all layers of one shape."""
        weight = self.weight
        key = (
            weight.shape,
            weight.dtype,
            weight.device,
            self.native is None,
            self.packing,
            self.bias is None,
            torch.get_num_threads(),
        )
        if key not in PLANS:
            bias = (
                None if self.bias is None else torch.zeros_like(self.bias)
            )  # other values would hide differences of small sums
            trials = trial_data(MAX_ROWS, *weight.shape, weight.dtype, weight.device)
            pack = self.native is not None or self.packing is not None
            PLANS[key] = find_plan([(FrozenLinear(trial, bias, pack=pack)._apply, x) for trial, x in trials])
        return PLANS[key]

    def _apply(self, flat: Tensor) -> Tensor:
        if self.native is not None and self._suits_native(flat):
            return self.native(flat)
        if self.packing is None or flat.shape[0] < self.packing[0]:
            return F.linear(flat, self.weight, self.bias)
        dtype = self.packing[1]
        out = torch.ops.mkldnn._linear_pointwise(flat.to(dtype), self.packed, self.packed_bias, "none", [], "")
        return out.to(flat.dtype)


class LowRankAddition(Protocol):
    """A low-rank addition up @ down to a weight."""

    down: Tensor  # [r, in]
    up: Tensor  # [out, r]


class AdaptedLinear:
    """A shared frozen linear layer with a low-rank addition."""

    def __init__(self, base: FrozenLinear, low: LowRankAddition) -> None:
        self.base, self.low = base, low
        self.native = None if base.native is None else native_linear.PackedAddition(base.native, low.down, low.up)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to [..., in]."""
        if self.native is not None and self.base.computes_natively(x):
            return self.native(x.view(-1, x.shape[-1])).view(*x.shape[:-1], -1)
        return self.base(x) + F.linear(F.linear(x, self.low.down), self.low.up)


def pack_additions(base: FrozenLinear, down: Tensor, up: Tensor) -> native_linear.PackedAddition | None:
    """The layer with the additions of E experts, [E, r, in] and [E, r, out], whose rows follow each other.

    None if native.c does not multiply the layer.
    """
    return None if base.native is None else native_linear.PackedAddition(base.native, down, up.transpose(1, 2))
