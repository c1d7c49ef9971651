"""Slots of running requests: rows of the tensors that hold what is learned of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class RequestSlots:
    """Gives every request a slot until it ends; preempted requests keep theirs as long as there are enough."""

    def __init__(self, num_slots: int) -> None:
        self.free = list(range(num_slots - 1, -1, -1))
        self.slots: dict[str, int] = {}  # by request, the least recently scheduled first
        self.batch: list[str] = []
        self.batch_slots: list[int] = []

    def schedule(self, requests: Sequence[str]) -> tuple[list[int], list[str]]:
        """Slots of the requests of a batch, and the requests that began with it."""
        if requests == self.batch:  # the usual case, compared without a loop in Python
            return self.batch_slots, []
        begun = []
        for request in requests:
            if request in self.slots:
                self.slots[request] = self.slots.pop(request)
        for request in requests:
            if request not in self.slots:
                if not self.free:
                    self._drop_oldest(requests)
                self.slots[request] = self.free.pop()
                begun.append(request)
        self.batch, self.batch_slots = list(requests), [self.slots[request] for request in requests]
        return self.batch_slots, begun

    def end(self, requests: Collection[str]) -> list[int]:
        """Free the slots of requests; returns them."""
        slots = [self.slots.pop(request) for request in requests if request in self.slots]
        self.free += slots
        if slots:
            self.batch, self.batch_slots = [], []
        return slots

    def _drop_oldest(self, running: Collection[str]) -> None:
        """Free the slot of the request that was not scheduled for longest; it begins anew when it comes back."""
        names = set(running)
        oldest = next(request for request in self.slots if request not in names)
        self.free.append(self.slots.pop(oldest))
