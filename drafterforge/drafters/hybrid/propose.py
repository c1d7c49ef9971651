"""Drafting of one tree by a neural drafter and retrieval together; decoding and replays share it.

Axes: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from drafterforge.drafters.base import CandidateIndex, DraftRows, IndexedDrafting
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.limits import DraftLimits, FixedLimits
from drafterforge.drafters.retrieval.propose import RetrievalProposer
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.expand import ReachGrowth
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import RetrievalEvidence, as_tree, join_trees, likeliest
from drafterforge.tree.tries import MergeRule

LEAST_IGNORANCE = 1e-9  # weight of the neural drafter that is divided by
TINY = 1e-9  # probability below which no candidate is proposed


class RetrievalIndex(CandidateIndex):
    """The retrieval half of hybrids; judged on the tokens that it adds without the neural drafter."""

    def __init__(self, drafter: HybridDrafter) -> None:
        self.retrieval = drafter.retrieval  # keeps it alive: the key of `HybridDrafting` holds its id
        spec = drafter.retrieval.spec
        retrieval = replace(
            drafter.retrieval,
            spec=replace(spec, doubt=spec.doubt * drafter.trust),
            min_probability=max(drafter.min_probability, TINY),
            min_expected=0.0,
        )
        self.doubt = spec.doubt
        super().__init__(RetrievalProposer(retrieval))

    def evidence(self, rows: Sequence[int], depth: int) -> list[Evidence]:
        self.catch_up()
        return [replace(self.proposer.evidence(row, depth), doubt=self.doubt) for row in rows]


class HybridDrafting(IndexedDrafting):
    """One hybrid's use of a `RetrievalIndex`."""

    def __init__(self, drafter: HybridDrafter) -> None:
        self.drafter = drafter
        self.key = id(drafter.retrieval), drafter.trust, drafter.min_probability

    def index(self) -> RetrievalIndex:
        return RetrievalIndex(self.drafter)

    def draft(
        self,
        evidence: Sequence[Evidence],
        root: Tensor,
        shape: TreeShape,
        draft: DraftRows,
        limits: DraftLimits | None = None,
    ) -> Tree:
        """Trees below the roots [B]; rows where retrieval alone is worth more skip the neural pass."""
        drafter = self.drafter
        if limits is None:
            limits = FixedLimits(drafter.min_probability, drafter.min_reach, drafter.min_retrieval_tokens)
        retrieval = RetrievalEvidence(evidence, drafter.trust, limits.min_probability, shape.top_k, limits.prices)
        nodes = [
            likeliest(row, shape.num_tokens, shape.top_k, limits.min_probability, prices=limits.prices)
            for row in evidence
        ]
        ignorance = [row.ignorance(drafter.trust) for row in evidence]
        neural = [
            row
            for row, alone in enumerate(nodes)
            if limits.uses_neural(row, sum(alone.probabilities), ignorance[row], len(alone.tokens))
        ]
        looked_up = [row for row in range(len(nodes)) if row not in neural]
        parts = []
        if looked_up:
            parts.append((looked_up, as_tree(root[looked_up], [nodes[row] for row in looked_up])))
        if neural:
            weights = [max(ignorance[row], LEAST_IGNORANCE) for row in neural]
            least = [reach / weight for reach, weight in zip(limits.least_reach(neural), weights, strict=True)]
            growth = ReachGrowth(shape, least, root.device)
            parts.append((neural, draft(neural, growth, retrieval.of(neural))))
            reaches = [[reach * weight for reach, weight in zip(row, weights, strict=True)] for row in growth.reaches]
            limits.drafted(growth.num_levels, reaches, growth.clock)
        return join_trees(parts, len(nodes))

    def rule(self, evidence: Evidence, shape: TreeShape) -> MergeRule:
        drafter = self.drafter
        nodes = likeliest(evidence, shape.num_tokens, shape.top_k, drafter.min_probability)
        drafts = sum(nodes.probabilities) < drafter.min_retrieval_tokens
        ignorance = evidence.ignorance(drafter.trust)
        return MergeRule(drafter.trust, drafter.min_probability, drafts, drafter.min_reach, ignorance)
