"""Retrieval as arms of a pool in vLLM: chains looked up on the host, in the request's text and in datastores.

Needs the committed tokens on the host, which vLLM has only without asynchronous scheduling.
Axes: L drafters that look up, B requests, P = K + 1 committed rows, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drafterforge.drafters.retrieval.model import ContextIndex, Retrieval, evidence_of
from drafterforge.tree.merge import likeliest

NO_GUESS = -1  # no token has this id


class Lookups:
    """The text of every slot, and what each drafter would continue it with."""

    def __init__(self, drafters: Sequence[Retrieval], depth: int) -> None:
        self.drafters, self.depth = drafters, depth
        self.texts: dict[int, ContextIndex] = {}  # by slot; none for a request without prompt tokens
        self.chains: list[list[list[int]]] = []  # of each request and drafter after the last `read`, [B][L]

    def begin(self, slot: int, prompt: Sequence[int] | None) -> None:
        """Start a request.  prompt: its token ids; None: vLLM was given embeddings."""
        self.texts.pop(slot, None)
        if prompt:
            self.texts[slot] = ContextIndex(self.drafters[0].spec)
            self.texts[slot].append(prompt)

    def end(self, slots: Sequence[int]) -> None:
        """Forget requests."""
        for slot in slots:
            self.texts.pop(slot, None)

    def read(self, slots: Sequence[int], tokens: list[list[int]], positions: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Append committed tokens that are new; returns the guess after each row and its worth, [L, B, P] each.

        tokens, positions: of each request's newest rows, [B][P].  `chains` then continue the whole texts.  The worth is
        the expected number of accepted tokens of the chain that begins with the guess.
        """
        guesses = torch.full((len(self.drafters), len(slots), self.depth + 1), NO_GUESS)
        worths = torch.zeros(guesses.shape)
        self.chains = []
        for row, slot in enumerate(slots):
            text = self.texts.get(slot)
            last: list[tuple[list[int], float]] = [([], 0.0) for _ in self.drafters]
            if text is not None:
                for column, (token, position) in enumerate(zip(tokens[row], positions[row], strict=True)):
                    if position == len(text.tokens):
                        text.append([token])
                    if position == len(text.tokens) - 1:
                        last = [self._chain(drafter, text) for drafter in self.drafters]
                        for arm, (chain, worth) in enumerate(last):
                            guesses[arm, row, column] = chain[0] if chain else NO_GUESS
                            worths[arm, row, column] = worth
            self.chains.append([chain for chain, _ in last])
        return guesses, worths

    def _chain(self, drafter: Retrieval, text: ContextIndex) -> tuple[list[int], float]:
        """The likeliest continuation, at most K tokens, and its worth; none if too few are expected to be accepted."""
        evidence = evidence_of(text, drafter.datastore, self.depth)
        nodes = likeliest(evidence, self.depth + 1, 1, drafter.min_probability)
        worth = sum(nodes.probabilities)
        return (nodes.tokens, worth) if worth >= drafter.min_expected else ([], 0.0)
