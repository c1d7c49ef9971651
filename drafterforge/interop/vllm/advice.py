"""A router's advice for the requests of a batch whose prompts were just read.

Axes: B requests, H hidden of the target, N drafters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drafterforge.router.features import prompt_features
from drafterforge.router.router import Router


class PromptAdvice:
    """Probabilities of the drafters by the target's features at the end of a prompt."""

    def __init__(self, router: Router, drafters: Sequence[str], device: torch.device) -> None:
        """router: reads the target's features.  drafters: names, [N]."""
        self.net = router.net.to(device)
        self.shares = torch.tensor(router.label_shares(drafters), dtype=torch.float32, device=device)  # [L, N]

    def __call__(self, features: Tensor) -> Tensor:
        """Probabilities [B, N] from the features [B, 3H] at the last positions of B prompts."""
        return self.net.probabilities(prompt_features(features[None], self.net.width)).float() @ self.shares
