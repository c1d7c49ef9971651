"""The algorithms of `selectors` as tensors, for many concurrent requests at once."""

from __future__ import annotations

from drafterforge.selectors.batched.base import BatchedSelector
from drafterforge.selectors.batched.registry import batched_names, batched_selector

__all__ = ["BatchedSelector", "batched_names", "batched_selector"]
