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


def extended_token_ids(counts: np.ndarray, token_ids: torch.Tensor, size: int) -> torch.Tensor:
    """`token_ids` [W] and the most frequent other ids of the answers, at most `size` in all, ascending, int64.

    counts: occurrences of each id among answer tokens, [V].  Ids that do not occur are not added.
    """
    rest = counts.copy()
    rest[token_ids.numpy()] = 0
    count = min(max(size - len(token_ids), 0), np.count_nonzero(rest))
    return torch.cat((token_ids, draft_token_ids(rest, count))).sort().values


def coverage(counts: np.ndarray, token_ids: torch.Tensor) -> float:
    """Share of the counted tokens that are in the draft vocabulary."""
    return float(counts[token_ids.numpy()].sum() / max(counts.sum(), 1))
