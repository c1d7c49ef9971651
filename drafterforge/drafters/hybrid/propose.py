"""Trees that an EAGLE-3 drafter and retrieval draft together, live and in replays.

Axes: B rows, S candidates of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from drafterforge.drafters.base import CandidateIndex, DraftRows
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.propose import RetrievalProposer
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import Others, as_tree, beside, likeliest

TINY = 1e-9  # probability; no candidate is less likely


class RetrievalIndex(CandidateIndex):
    """Looks up what hybrids take from retrieval; judged by what they take without any guess of their neural drafter."""

    def __init__(self, drafter: HybridDrafter) -> None:
        """drafter: whose retrieval drafter it serves."""
        self.retrieval = drafter.retrieval  # held, as `index_key` has its address
        spec = drafter.retrieval.spec
        taken = replace(
            drafter.retrieval,
            spec=replace(spec, doubt=spec.doubt * drafter.trust),
            min_probability=max(drafter.min_probability, TINY),
            min_expected=0.0,
        )
        self.doubt = spec.doubt
        super().__init__(RetrievalProposer(taken))

    def evidence(self, rows: Sequence[int], depth: int) -> list[Evidence]:
        """What followed where the texts of some rows stood before, `depth` tokens at most."""
        self.catch_up()
        return [self.proposer.evidence(row, depth)._replace(doubt=self.doubt) for row in rows]


def index_key(drafter: HybridDrafter) -> tuple[int, float, float]:
    """What decides what is taken from retrieval: where this is equal, one `RetrievalIndex` is enough."""
    return id(drafter.retrieval), drafter.trust, drafter.min_probability


def draft_hybrid(
    drafter: HybridDrafter, evidence: Sequence[Evidence], root: Tensor, shape: TreeShape, draft: DraftRows
) -> Tree:
    """Trees below the roots [B], by retrieval alone where that promises enough."""
    others = Others(evidence, drafter.trust, drafter.min_probability, shape.top_k)
    alone = [likeliest(one, shape.num_tokens, shape.top_k, others.least) for one in evidence]
    unsure = [row for row, nodes in enumerate(alone) if sum(nodes.probabilities) < drafter.enough]
    sure = [row for row in range(len(alone)) if row not in unsure]
    parts = []
    if sure:
        parts.append((sure, as_tree(root[sure], [alone[row] for row in sure])))
    if unsure:
        theirs = others.of(unsure)
        ignorance = [one.ignorance(drafter.trust) for one in theirs.evidence]
        growth = WorthReading(shape, drafter.min_reach, torch.tensor(ignorance, device=root.device))
        parts.append((unsure, draft(unsure, growth, theirs)))
    return beside(parts, len(alone))


class WorthReading:
    """Levels are drafted while their parents are likely to be reached, as far as retrieval cannot tell."""

    def __init__(self, shape: TreeShape, min_reach: float, ignorance: Tensor) -> None:
        """ignorance: the share of the drafter's law beside what retrieval knows, [B]."""
        self.shape, self.min_reach, self.ignorance = shape, min_reach, ignorance

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`; scores: [B, S]."""
        best = scores.topk(min(self.shape.top_k, scores.shape[1]), dim=1).values
        return best.exp().sum(dim=1) * self.ignorance >= self.min_reach

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        return torch.full_like(depths, self.shape.num_tokens)
