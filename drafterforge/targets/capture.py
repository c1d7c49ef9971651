"""Teacher-forced passes of the target, which give the features, states and argmax that drafters are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafterforge.targets.load import Target


@dataclass(frozen=True)
class Capture:
    """Features, states and argmax of a sequence of T tokens, in the target's dtype."""

    features: Tensor  # low|mid|high, [T, 3H]
    states: Tensor  # final states after the norm, [T, H]
    argmax: Tensor  # most probable next id over the full vocabulary, [T] int64


class FeatureCapture:
    """Runs the target on whole sequences, `tokens_per_pass` padded tokens at a time."""

    def __init__(self, target: Target, tokens_per_pass: int = 2048) -> None:
        self.target, self.tokens_per_pass = target, tokens_per_pass

    @torch.inference_mode()
    def __call__(self, sequences: list[list[int]]) -> list[Capture]:
        """One `Capture` per sequence, in order."""
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        captured: dict[int, Capture] = {}
        while order:
            longest = len(sequences[order[-1]])
            count = max(1, self.tokens_per_pass // longest)
            batch, order = order[-count:], order[:-count]
            captured.update(zip(batch, self._capture([sequences[i] for i in batch]), strict=True))
        return [captured[i] for i in range(len(sequences))]

    def _capture(self, sequences: list[list[int]]) -> list[Capture]:
        target, lengths = self.target, [len(sequence) for sequence in sequences]
        tokens = torch.zeros(len(sequences), max(lengths), dtype=torch.long)  # padded on the right: attention is causal
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
        positions = torch.arange(max(lengths), device=target.device).expand(len(sequences), -1)
        states, features = target.forward(tokens.to(target.device), positions, None)
        captures = []
        for row, length in enumerate(lengths):
            row_states = states[row, :length]
            captures.append(Capture(features[row, :length].clone(), row_states.clone(), self.argmax(row_states)))
        return captures

    @torch.inference_mode()
    def argmax(self, states: Tensor) -> Tensor:
        """Most probable next ids, [T], by final states [T, H] of any dtype and device."""
        states = states.to(self.target.device, self.target.compute_dtype)
        return torch.cat([self.target.logits(part).argmax(dim=-1) for part in states.split(256)])

    @torch.inference_mode()
    def normed(self, outputs: Tensor) -> Tensor:
        """Final states [T, H] by the last layer's outputs [T, H] of any dtype and device."""
        return self.target.backbone.normed(outputs.to(self.target.device, self.target.compute_dtype)).cpu()

    def layer_inputs(self, ids: Sequence[int]) -> Tensor:
        """Inputs of all L layers, [L, T, H]."""
        backbone = self.target.backbone
        taps, backbone.taps = backbone.taps, tuple(range(backbone.num_layers))
        try:
            features = self([list(ids)])[0].features
        finally:
            backbone.taps = taps
        return features.unflatten(1, (backbone.num_layers, -1)).transpose(0, 1)

    @property
    def taps(self) -> Sequence[int]:
        """The layers whose inputs are the features."""
        return self.target.backbone.taps
