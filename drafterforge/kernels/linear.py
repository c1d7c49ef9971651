"""Linear layers with frozen weights, prepacked for oneDNN where that is faster."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor


@functools.cache
def computes_bfloat16(device_type: str) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware (AMX or AVX512-BF16 on a CPU)."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device_type != "cpu":
        return False
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    avx512 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return bool(amx() or avx512())


def _pack_from(weight: Tensor) -> int | None:
    """Fewest rows for which a packed weight beats `F.linear`; None if it never does.

    Measured on two CPUs: with AMX a plain bfloat16 `F.linear` reorders its weight at every call, so packing always
    wins; in float32 one row is a matrix-vector product that streams the plain weight faster, and packing wins from
    two rows on.
    """
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return None
    if weight.dtype == torch.bfloat16 and computes_bfloat16("cpu"):
        return 1
    return 2 if weight.dtype == torch.float32 else None


class FrozenLinear:
    """x @ weight.T + bias for inference; `__call__` takes x [..., in] and returns [..., out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.pack_from = _pack_from(self.weight) if pack else None
        if self.pack_from is not None:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), None)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to [..., in]; flattened first, since a non-contiguous 3-D input would copy the weight per row."""
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        if self.pack_from is None or flat.shape[0] < self.pack_from:
            out = F.linear(flat, self.weight, self.bias)
        else:
            out = torch.ops.mkldnn._linear_pointwise(flat, self.packed, self.bias, "none", [], "")
        return out.view(*x.shape[:-1], out.shape[-1])
