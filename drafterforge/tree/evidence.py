"""What retrieval knows about the next tokens: what followed earlier occurrences of the text's last tokens.

Axes: N occurrences, D levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

SEPARATOR = -1  # before, between and after the datastore's sequences

Occurrence = tuple[float, Sequence[int]]  # its weight, and the tokens that followed


@dataclass(frozen=True, eq=False)
class Evidence:
    """Continuations of earlier occurrences of the text's last tokens, up to the requested depth.  On the host."""

    weights: Tensor  # [N] float64
    ahead: Tensor  # the tokens that followed, [N, D] int32, padded with SEPARATOR
    doubt: float  # weight of all other continuations
    length_weight: float  # factor of an occurrence's weight for each further token that matches

    @staticmethod
    def of(occurrences: Sequence[Occurrence], doubt: float, length_weight: float) -> Evidence:
        """The evidence of these occurrences, whose continuations may have any lengths."""
        depth = max((len(ahead) for _, ahead in occurrences), default=0)
        padded = [[*ahead, *[SEPARATOR] * (depth - len(ahead))] for _, ahead in occurrences]
        weights = torch.tensor([weight for weight, _ in occurrences], dtype=torch.double)
        return Evidence(weights, torch.tensor(padded, dtype=torch.int32).view(len(padded), depth), doubt, length_weight)

    def joined(self, occurrences: Sequence[Occurrence]) -> Evidence:
        """With further occurrences behind those that are known."""
        further = Evidence.of(occurrences, self.doubt, self.length_weight)
        depth = max(self.ahead.shape[1], further.ahead.shape[1])
        ahead = [F.pad(part.ahead, (0, depth - part.ahead.shape[1]), value=SEPARATOR) for part in (self, further)]
        return replace(self, weights=torch.cat((self.weights, further.weights)), ahead=torch.cat(ahead))

    @property
    def occurrences(self) -> list[tuple[float, list[int]]]:
        """Weight of each occurrence, and the tokens that followed."""
        return list(zip(self.weights.tolist(), self.ahead.tolist(), strict=True))

    def ignorance(self, trust: float) -> float:
        """Share of the drafter in the joint distribution, in [0, 1].  trust: its weight, in units of `doubt`."""
        doubt = self.doubt * trust
        return doubt / (float(self.weights.sum()) + doubt)
