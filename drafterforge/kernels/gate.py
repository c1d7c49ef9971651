"""The gated activation of a feed-forward layer, in torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate|up, [..., 2F] to [..., F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
