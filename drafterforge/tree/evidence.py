"""What retrieval knows about the next tokens: what followed earlier occurrences of the text's last tokens."""

from __future__ import annotations

from typing import NamedTuple

SEPARATOR = -1  # before, between and after the datastore's sequences


class Evidence(NamedTuple):
    """Continuations of earlier occurrences of the text's last tokens, up to the requested depth."""

    occurrences: list[tuple[float, list[int]]]  # weight, and the tokens that followed
    doubt: float  # weight of all other continuations
    length_weight: float  # factor of an occurrence's weight for each further token that matches

    def ignorance(self, trust: float) -> float:
        """Share of the drafter in the joint distribution, in [0, 1].  trust: its weight, in units of `doubt`."""
        doubt = self.doubt * trust
        return doubt / (sum(weight for weight, _ in self.occurrences) + doubt)
