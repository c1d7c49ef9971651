"""RMS norm for inference, with as few torch operations as possible."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis, [..., D]; gain: [D], or of the axes of x, some of them 1.

    A float32 `F.rms_norm` on a CPU is put together from some fifteen operations, which is most of its cost on a few
    rows; other dtypes and devices take it as it is.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or torch.is_grad_enabled():
        if gain.dim() > 1:
            return F.rms_norm(x, x.shape[-1:], None, eps) * gain
        return F.rms_norm(x, x.shape[-1:], gain, eps)
    scale = torch.linalg.vecdot(x, x).unsqueeze(-1).div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).mul_(gain)
