"""The largest logits of rows: argmax, and the best few with their log-probabilities."""

from __future__ import annotations

from torch import Tensor

from drafterforge.kernels import native


def argmax(x: Tensor) -> Tensor:
    """Places of the largest numbers along the last axis, [...] of [..., W]; of equal ones the first."""
    if native.takes(x) and x.shape[-1]:
        return native.argmax(x.reshape(-1, x.shape[-1]).contiguous()).view(x.shape[:-1])
    return x.argmax(dim=-1)


def best_logp(logits: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Log-probabilities and places of the best `count`, descending, each [..., count] of float32 logits [..., W].

    Equal logits stand in the order of their places.  None where native.c does not compute.
    """
    if not native.takes(logits):
        return None
    best, places = native.top(logits.reshape(-1, logits.shape[-1]).contiguous(), count)
    return best.view(*logits.shape[:-1], count), places.view(*logits.shape[:-1], count)
