"""The candidate pool of a draft, level by level, with torch operations that never wait for a GPU.

`native_trees.NativeCandidates` does the same with native.c; a test compares them.
Axes: B rows, K beam nodes, P candidates of all levels, W draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.kernels.trees import cut, ordered, top_children


class Candidates:
    """The pool of a draft, and the beam of its newest level."""

    def __init__(self, batch: int, most: int, names: Tensor | None) -> None:
        """most: candidates of a row (for its native twin).  names: token of each logit, [W] or, for each row, [B, W];
        None: the same.
        """
        self.batch, self.names, self.size = batch, names, 0
        self.widths: Tensor | None = None  # beam nodes of each row and children of each node, [B], if some have fewer
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []  # tokens, scores and parents of every level
        self.beam: tuple[Tensor, Tensor] | None = None  # scores and pool indices of its nodes, [B, K]

    @property
    def tokens(self) -> Tensor:
        """[B, P]."""
        return torch.cat([tokens for tokens, _, _ in self.parts], dim=1)

    @property
    def scores(self) -> Tensor:
        """Cumulative log-probabilities, [B, P]."""
        return torch.cat([scores for _, scores, _ in self.parts], dim=1)

    @property
    def parents(self) -> Tensor:
        """Pool indices of the parents, -1 for the root's children, [B, P]."""
        return torch.cat([parents for _, _, parents in self.parts], dim=1)

    @property
    def levels(self) -> Tensor:
        """The level of every candidate, [P]."""
        sizes = (tokens.new_full(tokens.shape[1:], level) for level, (tokens, _, _) in enumerate(self.parts, start=1))
        return torch.cat(list(sizes))

    def level(
        self, logits: Tensor, count: int, beam_size: int, growing: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add the best `count` children of each beam node; the best `beam_size` of all are the next beam.

        logits: [B, K, W]; K is 1 for the root.  growing: [B] bool, rows that have this level; candidates of other rows
        score -inf.  Returns the next beam's tokens and origins in the one before, [B, K'], and the new candidates'
        scores, [B, n].
        """
        logp, ids = top_children(logits.float(), min(count, logits.shape[-1]))
        scores, parents = logp.flatten(1), torch.full_like(ids, -1).flatten(1)
        if self.beam is not None:
            beam_scores, beam_indices = self.beam
            scores = (beam_scores[:, :, None] + logp).flatten(1)
            parents = beam_indices.repeat_interleave(count, dim=1)
        if growing is not None:
            scores = scores.masked_fill(~growing[:, None], -torch.inf)
        if self.widths is not None:
            index = torch.arange(scores.shape[1], device=scores.device)
            beyond = torch.maximum(index // logp.shape[-1], index % logp.shape[-1]) >= self.widths[:, None]
            scores = scores.masked_fill(beyond, -torch.inf)
        ids = ids.flatten(1)
        tokens = ids if self.names is None else self.names.expand(self.batch, -1).gather(1, ids)
        beam = ordered(scores)[:, :beam_size]
        self.beam = scores.gather(1, beam), self.size + beam
        self.parts.append((tokens, scores, parents))
        self.size += scores.shape[1]
        return tokens.gather(1, beam), beam // count, scores

    def reads(self, before: Tensor, origin: Tensor) -> Tensor:
        """Level slots that a beam reads, [B, K', L + K'] bool: its origins' in `before` [B, K, L], and itself."""
        batch, count = origin.shape
        itself = torch.eye(count, dtype=torch.bool, device=before.device).expand(batch, -1, -1)
        return torch.cat((before.gather(1, origin[:, :, None].expand(-1, -1, before.shape[2])), itself), dim=2)

    def cut(self, root: Tensor, nodes: int, counts: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, parents and levels of the best `nodes` nodes of every row, see `kernels.trees.cut`."""
        return cut(root, self.tokens, self.scores, self.parents, self.levels, nodes, counts)
