"""A drafter's distributions along the most probable branch of its trees, for 1 - TV of target and drafter.

Axes: B rows, K beam nodes, W draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drafterforge.tree.expand import Growth, Step, expand
from drafterforge.tree.grow import Tree, TreeShape, top_children
from drafterforge.tree.merge import RetrievalEvidence


@dataclass(frozen=True)
class BranchLogits:
    """Logits of a row's branch, the root's first."""

    logits: list[Tensor]  # of each node's children, [W]
    token_ids: Tensor  # target ids of the draft ids, [W]

    def branch(self) -> list[tuple[Tensor, Tensor]]:
        """See `Proposals`."""
        return [(self.token_ids, logits.softmax(dim=-1)) for logits in self.logits]


class BranchRecorder:
    """Records the logits along each row's branch of best children while a tree is drafted.

    A tree has the best child of a node if it has any, so this is its most probable branch, as far as the tree goes.
    """

    def __init__(self, logits: Tensor, step: Step, token_ids: Tensor | None) -> None:
        """logits: of the root's children, [B, W].  step, token_ids: see `expand`."""
        self.step = step
        self.token_ids = torch.arange(logits.shape[1], device=logits.device) if token_ids is None else token_ids
        self.index = torch.zeros(len(logits), dtype=torch.long, device=logits.device)  # in the beam before; -1: not
        self.logits: list[Tensor] = []  # of each level, [B, W]
        self._add(logits.float())

    def _add(self, logits: Tensor) -> None:
        self.logits.append(logits)
        self.best = self.token_ids[top_children(logits, 1)[1][:, 0]]

    def recorded_step(self, level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
        """A `Step` that also records; where the branch has left the beam, its logits are those of another node."""
        scores = self.step(level, tokens, origin, reads)
        hits = (tokens == self.best[:, None]) & (origin == self.index[:, None])
        self.index = torch.where(hits.any(dim=1), hits.long().argmax(dim=1), -1)
        self._add(scores[torch.arange(len(scores), device=scores.device), self.index.clamp(min=0)].float())
        return scores

    def proposals(self) -> list[BranchLogits]:
        """The branch of each row."""
        return [BranchLogits(list(levels), self.token_ids) for levels in zip(*self.logits, strict=True)]


def expand_with_proposals(
    root: Tensor,
    logits: Tensor,
    shape: TreeShape,
    step: Step,
    token_ids: Tensor | None = None,
    growth: Growth | None = None,
    retrieval: RetrievalEvidence | None = None,
) -> Tree:
    """As `expand`, with `Tree.proposals`; trees with retrieval have them anyway."""
    if retrieval is not None:
        return expand(root, logits, shape, step, token_ids, growth, retrieval)
    recorder = BranchRecorder(logits, step, token_ids)
    tree = expand(root, logits, shape, recorder.recorded_step, token_ids, growth)
    return replace(tree, proposals=recorder.proposals())
