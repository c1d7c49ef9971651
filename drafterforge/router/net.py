"""The router's network: pooled features to logits over labels.  Axes: B prompts, F features, L labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MIN_STD = 1e-4  # least deviation, so a feature that hardly varies in training cannot blow up later


class RouterNet(nn.Module):
    """Normalisation, then a linear head or a small MLP; `temperature` calibrates the probabilities."""

    def __init__(self, width: int, num_labels: int, hidden: int = 0) -> None:
        """hidden: width of the MLP's inner layer; 0: a linear head."""
        super().__init__()
        self.width, self.num_labels, self.hidden = width, num_labels, hidden
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
        self.register_buffer("temperature", torch.ones(()))
        if hidden:
            self.head = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, num_labels))
        else:
            self.head = nn.Linear(width, num_labels)
            nn.init.zeros_(self.head.weight)  # safe, as a linear head has no symmetry to break
            nn.init.zeros_(self.head.bias)

    @torch.no_grad()
    def normalise(self, pooled: Tensor) -> None:
        """Set mean and deviation from the training prompts' features, [B, F]."""
        self.mean.copy_(pooled.mean(dim=0))
        self.std.copy_(pooled.std(dim=0, correction=0).clamp(min=MIN_STD))

    def forward(self, pooled: Tensor) -> Tensor:
        """Logits before calibration, [B, L], of pooled features [B, F]."""
        return self.head((pooled - self.mean) / self.std)

    def probabilities(self, pooled: Tensor) -> Tensor:
        """Calibrated probabilities, [B, L]."""
        return torch.softmax(self(pooled) / self.temperature, dim=-1)
