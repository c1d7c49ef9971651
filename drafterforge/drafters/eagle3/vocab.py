"""Which target tokens a drafter can propose."""

from __future__ import annotations

import numpy as np
import torch


def draft_token_ids(counts: np.ndarray, size: int) -> torch.Tensor:
    """The `size` most frequent target ids, ascending, [size] int64.

    counts: how often each id occurs among answer tokens, [V].  Ties, and the places left when fewer ids occur than
    are wanted, go to the lowest ids, so that the map is a function of the counts alone.
    """
    size = min(size, counts.size)
    order = np.lexsort((np.arange(counts.size), -counts))
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64))


def coverage(counts: np.ndarray, token_ids: torch.Tensor) -> float:
    """Share of the counted tokens that the map holds."""
    return float(counts[token_ids.numpy()].sum() / max(counts.sum(), 1))
