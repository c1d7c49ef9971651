"""Averages of what cycles and requests show."""

from __future__ import annotations


class Mean:
    """A mean that forgets: of all values at first, then of about the last `horizon`."""

    def __init__(self, value: float, weight: float, horizon: float) -> None:
        """value, weight: what is assumed before the first value, and how many values that counts for."""
        self.value, self.weight, self.horizon = value, weight, horizon

    def add(self, value: float) -> None:
        """Add a value."""
        self.weight = min(self.weight + 1.0, self.horizon)
        self.value += (value - self.value) / self.weight
