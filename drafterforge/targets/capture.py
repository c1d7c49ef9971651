"""Teacher-forced passes of the target: the features, states and argmax a drafter learns from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drafterforge.targets.load import Target


@dataclass(frozen=True)
class Capture:
    """One sequence of T tokens as the target sees it, in the target's dtype."""

    features: Tensor  # low|mid|high, [T, 3H]
    states: Tensor  # final normed states, [T, H]
    argmax: Tensor  # most probable next id over the full vocabulary, [T] int64


class FeatureCapture:
    """Runs the target over whole sequences, `tokens_per_pass` padded tokens at a time."""

    def __init__(self, target: Target, tokens_per_pass: int = 2048) -> None:
        self.target, self.tokens_per_pass = target, tokens_per_pass

    @torch.inference_mode()
    def __call__(self, sequences: list[list[int]]) -> list[Capture]:
        """One `Capture` per sequence, in order; shorter sequences are padded on the right, where nothing looks."""
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        captured: dict[int, Capture] = {}
        while order:
            longest = len(sequences[order[-1]])
            count = max(1, self.tokens_per_pass // longest)
            chosen, order = order[-count:], order[:-count]
            captured.update(zip(chosen, self._capture([sequences[i] for i in chosen]), strict=True))
        return [captured[i] for i in range(len(sequences))]

    def _capture(self, sequences: list[list[int]]) -> list[Capture]:
        target, lengths = self.target, [len(one) for one in sequences]
        tokens = torch.zeros(len(sequences), max(lengths), dtype=torch.long)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
        positions = torch.arange(max(lengths), device=target.device).expand(len(sequences), -1)
        states, features = target.forward(tokens.to(target.device), positions, None)
        found = []
        for row, length in enumerate(lengths):
            own = states[row, :length]
            argmax = torch.cat([target.logits(part).argmax(dim=-1) for part in own.split(256)])
            found.append(Capture(features[row, :length].clone(), own.clone(), argmax))
        return found
