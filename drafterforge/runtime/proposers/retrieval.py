"""Retrieval at work: drafts what followed earlier occurrences of the text's end, at no model's cost.

Axes: B rows, A committed tokens, T tree nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from drafterforge.drafter.retrieval import Candidates, ContextIndex, Retrieval, grow_candidates
from drafterforge.runtime.proposers.base import Proposer
from drafterforge.tree.grow import Tree, TreeShape, root_only

MOST = 16  # proposals for one token that are told, best first


class RetrievalProposer(Proposer):
    """One index of the text for each row; the datastore, if any, is shared."""

    def __init__(self, drafter: Retrieval) -> None:
        self.drafter = drafter
        self.rows: list[ContextIndex] = []

    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row, see `Proposer`; features are not read."""
        index = ContextIndex(self.drafter.spec)
        index.append(text.tolist())
        self.rows.append(index)

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        self.rows = [self.rows[row] for row in rows]

    def refresh(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        """Index the committed tokens, see `Proposer`."""
        for index, committed, count in zip(self.rows, tokens.tolist(), counts, strict=True):
            index.append(committed[:count])

    def refresh_and_tell(self, tokens: Tensor, counts: list[int]) -> list[list[dict[int, float]]]:
        """As `refresh`; returns what would have been proposed for each committed token, with probabilities."""
        one = TreeShape(num_tokens=MOST + 1, depth=1, top_k=MOST)
        told = []
        for index, committed, count in zip(self.rows, tokens.tolist(), counts, strict=True):
            told.append([])
            for token in committed[:count]:
                ahead, _, _, scores = self._worth(index, one)
                told[-1].append({guess: math.exp(score) for guess, score in zip(ahead, scores, strict=True)})
                index.append([token])
        return told

    def draft(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees of different sizes, the smaller ones padded; nothing where little is expected."""
        return self.draft_some(range(len(self.rows)), root, shape)

    def draft_some(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        """As `draft`, for some rows, whose roots are [B']."""
        if shape.depth == 0 or shape.num_tokens <= 1:
            return root_only(root)
        drafted = [self._worth(self.rows[row], shape)[:3] for row in rows]
        size = 1 + max(len(tokens) for tokens, _, _ in drafted)
        padding = [list(range(1 + len(tokens), size)) for tokens, _, _ in drafted]
        roots, zero = root.tolist(), [0]
        rows = zip(roots, drafted, padding, strict=True)
        tokens, parents, levels = zip(
            *(
                (
                    [token, *found[0], *zero * len(pad)],
                    [0, *(parent + 1 for parent in found[1]), *pad],
                    [0, *found[2], *zero * len(pad)],
                )
                for token, found, pad in rows
            ),
            strict=True,
        )
        return Tree(*(torch.tensor(part, device=root.device) for part in (tokens, parents, levels)))

    def candidates(self, row: int, shape: TreeShape) -> Candidates:
        """What is proposed below a row's root, whatever it may be worth."""
        return grow_candidates(self.rows[row], self.drafter.datastore, shape.num_tokens, shape.depth, shape.top_k)

    def _worth(self, index: ContextIndex, shape: TreeShape) -> tuple[list[int], list[int], list[int], list[float]]:
        """Tokens, parents, levels and scores of what is worth verifying."""
        drafter = self.drafter
        found = grow_candidates(index, drafter.datastore, shape.num_tokens, shape.depth, shape.top_k)
        worth = [place for place, score in enumerate(found.scores) if score >= math.log(drafter.min_probability)]
        if sum(math.exp(found.scores[place]) for place in worth) < drafter.min_expected:
            return [], [], [], []
        new = {place: at for at, place in enumerate(worth)} | {-1: -1}  # a child never outscores its parent
        return (
            [found.tokens[place] for place in worth],
            [new[found.parents[place]] for place in worth],
            [found.levels[place] for place in worth],
            [found.scores[place] for place in worth],
        )
