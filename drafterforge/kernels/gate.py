"""The gated activation of a feed-forward layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from drafterforge.kernels import native


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate|up, [..., 2F] to [..., F]."""
    if gate_up.is_contiguous() and native.takes(gate_up):
        return native.swiglu(gate_up.view(-1, gate_up.shape[-1])).view(*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
