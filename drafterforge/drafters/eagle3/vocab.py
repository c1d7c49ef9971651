"""Selection of the draft vocabulary: the target tokens that a drafter can propose."""

from __future__ import annotations

import numpy as np
import torch


def draft_token_ids(counts: np.ndarray, size: int) -> torch.Tensor:
    """The `size` most frequent target ids, ascending, [size] int64.

    counts: occurrences of each id among answer tokens, [V].  Lower ids win ties, so the vocabulary depends on the
    counts alone.
    """
    size = min(size, counts.size)
    order = np.lexsort((np.arange(counts.size), -counts))
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64))


def coverage(counts: np.ndarray, token_ids: torch.Tensor) -> float:
    """Share of the counted tokens that are in the draft vocabulary."""
    return float(counts[token_ids.numpy()].sum() / max(counts.sum(), 1))
