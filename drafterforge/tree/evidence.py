"""What retrieval knows about the tokens that may come next: earlier occurrences of the text's end."""

from __future__ import annotations

from typing import NamedTuple

SEPARATOR = -1  # before, between and after the datastore's sequences


class Evidence(NamedTuple):
    """What followed where the text's end stood before, as far as was asked."""

    occurrences: list[tuple[float, list[int]]]  # weight, and the tokens after it
    doubt: float  # weight of "none of these"
    length_weight: float  # an occurrence that matches one token more counts this much more

    def ignorance(self, trust: float) -> float:
        """Share of a law that weighs `trust` doubts beside the occurrences, in [0, 1]."""
        doubt = self.doubt * trust
        return doubt / (sum(weight for weight, _ in self.occurrences) + doubt)
