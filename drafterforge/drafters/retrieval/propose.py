"""Drafting by retrieval: proposes continuations of earlier occurrences of the text's suffix, without a model.

Axes: B rows, A committed tokens, T tree nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from drafterforge.drafters.proposer import JudgedProposer
from drafterforge.drafters.retrieval.model import ContextIndex, Retrieval, evidence_of
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.grow import Tree, TreeShape, root_only
from drafterforge.tree.merge import Nodes, as_tree, likeliest
from drafterforge.tree.tries import MergeRule

IMPOSSIBLE = 2.0  # a probability that no node has
MAX_PROPOSALS = 16  # proposals for one token that are judged, best first


class RetrievalProposer(JudgedProposer):
    """Retrieval of all rows: one index of the text per row, and the shared datastore."""

    reads_features = False

    def __init__(self, drafter: Retrieval) -> None:
        self.drafter = drafter
        self.rows: list[ContextIndex] = []

    def admit(self, text: Tensor, features: Tensor) -> None:
        index = ContextIndex(self.drafter.spec)
        index.append(text.tolist())
        self.rows.append(index)

    def keep(self, rows: list[int]) -> None:
        self.rows = [self.rows[row] for row in rows]

    def read(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        for index, committed, count in zip(self.rows, tokens.tolist(), counts, strict=True):
            index.append(committed[:count])

    def read_with_guesses(
        self, tokens: Tensor, features: Tensor, counts: Sequence[int]
    ) -> list[list[dict[int, float]]]:
        """As `read`; returns proposals for each committed token, with probabilities."""
        shape = TreeShape(num_tokens=MAX_PROPOSALS + 1, depth=1, top_k=MAX_PROPOSALS)
        guesses = []
        for index, committed, count in zip(self.rows, tokens.tolist(), counts, strict=True):
            guesses.append([])
            for token in committed[:count]:
                nodes = self._likely_nodes(index, shape)
                guesses[-1].append(dict(zip(nodes.tokens, nodes.probabilities, strict=True)))
                index.append([token])
        return guesses

    def draft_trees(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B], padded to one size; the root alone if too few accepted nodes are expected."""
        return self.draft_rows(range(len(self.rows)), root, shape)

    def draft_rows(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        """As `draft_trees`, for some rows, whose roots are [B']."""
        if shape.depth == 0 or shape.num_tokens <= 1:
            return root_only(root)
        return as_tree(root, [self._likely_nodes(self.rows[row], shape) for row in rows])

    def evidence(self, row: int, depth: int) -> Evidence:
        """Earlier occurrences of the end of a row's text, however few."""
        return evidence_of(self.rows[row], self.drafter.datastore, depth)

    def rule(self, evidence: Evidence, shape: TreeShape) -> MergeRule:
        """How a tree of this evidence alone is cut when the device builds it."""
        drafter = self.drafter
        nodes = likeliest(evidence, shape.num_tokens, shape.top_k, drafter.min_probability)
        pays = sum(nodes.probabilities) >= drafter.min_expected
        return MergeRule(1.0, drafter.min_probability if pays else IMPOSSIBLE, False, 0.0, 0.0)

    def _likely_nodes(self, index: ContextIndex, shape: TreeShape) -> Nodes:
        """The nodes below a root; none if too few are expected to be accepted."""
        drafter, evidence = self.drafter, evidence_of(index, self.drafter.datastore, shape.depth)
        nodes = likeliest(evidence, shape.num_tokens, shape.top_k, drafter.min_probability)
        return nodes if sum(nodes.probabilities) >= drafter.min_expected else Nodes([], [], [], [])
