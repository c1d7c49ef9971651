"""Averages of what cycles and requests show."""

from __future__ import annotations

MOST_TIMES = 4.0  # of what is usual, that seconds count as at most


class Mean:
    """A mean that forgets: of all values at first, then of about the last `horizon`."""

    def __init__(self, value: float, weight: float, horizon: float) -> None:
        """value, weight: what is assumed before the first value, and how many values that counts for."""
        self.value, self.weight, self.horizon = value, weight, horizon

    def add(self, value: float) -> None:
        """Add a value."""
        self.weight = min(self.weight + 1.0, self.horizon)
        self.value += (value - self.value) / self.weight

    def add_seconds(self, seconds: float, least: float) -> None:
        """Add a duration, as at most `MOST_TIMES` the mean: a longer one means that another program ran.

        least: what the mean counts as at least.
        """
        self.add(min(seconds, MOST_TIMES * max(self.value, least)))
