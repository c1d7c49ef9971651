"""Trees of what retrieval proposes, alone or together with an EAGLE-3 drafter.

Together, the drafter's distribution is the prior of retrieval's counts (Dirichlet smoothing; MacKay and Peto, 1995):
without earlier occurrences the drafter decides; more and longer matches give retrieval more weight.
Axes: B rows, P pool candidates of the drafter, T tree nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from heapq import heappop, heappush
from itertools import accumulate
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.kernels.dispatch import retrieval_kernels
from drafterforge.tree.evidence import SEPARATOR, Evidence
from drafterforge.tree.grow import Proposals, Tree


class RetrievalEvidence(NamedTuple):
    """What retrieval knows of each row's text, and how it is weighed against the drafter."""

    evidence: Sequence[Evidence]
    trust: float  # weight of the drafter's distribution, in units of `Evidence.doubt`
    min_probability: float  # of a node, all its ancestors accepted too; less likely nodes are left out
    top_k: int  # most tokens that retrieval proposes below one node
    prices: Sequence[float] = ()  # see `likeliest`

    def of(self, rows: Sequence[int]) -> RetrievalEvidence:
        """The evidence of some rows."""
        return self._replace(evidence=[self.evidence[row] for row in rows])


class Nodes(NamedTuple):
    """Nodes of one row's tree without its root, in level order, the likelier nodes of a level first."""

    tokens: list[int]
    parents: list[int]  # 0: the root, 1: the first node
    levels: list[int]  # from 1
    probabilities: list[float]  # that the node and all its ancestors are accepted

    def branch(self) -> list[tuple[Tensor, Tensor]]:
        """See `Proposals`; tokens that are not in the tree count as impossible."""
        levels, node, reached = [], 0, 1.0
        while children := [index for index, parent in enumerate(self.parents) if parent == node]:
            shares = torch.tensor([self.probabilities[index] for index in children]) / reached
            levels.append((torch.tensor([self.tokens[index] for index in children]), shares))
            node, reached = children[0] + 1, self.probabilities[children[0]]
        return levels


class DrafterCandidates(NamedTuple):
    """An EAGLE-3 drafter's candidates for one row, see `cut_tree`.  On the host."""

    tokens: Tensor  # [P]
    scores: Tensor  # cumulative log-probabilities, [P] float32; -inf is no candidate
    parents: Tensor  # index of the parent, -1 for the root's children, [P]

    def children(self) -> dict[int | None, dict[int, tuple[float, int]]]:
        """Parent index -> token of a child -> its probability given the parent, and its index."""
        children: dict[int | None, dict[int, tuple[float, int]]] = {}
        scores = self.scores.tolist()
        for index, (token, score, parent) in enumerate(
            zip(self.tokens.tolist(), scores, self.parents.tolist(), strict=True)
        ):
            if score > -math.inf:
                parent_score = scores[parent] if parent >= 0 else 0.0
                children.setdefault(parent, {})[token] = math.exp(score - parent_score), index
        return children


def merge_trees(
    root: Tensor, tokens: Tensor, scores: Tensor, parents: Tensor, num_tokens: int, retrieval: RetrievalEvidence
) -> Tree:
    """The root and the likeliest num_tokens - 1 nodes of each row, proposed by the drafter or by retrieval.

    root: [B].  tokens, scores, parents: [B, P], see `cut_tree`.  Trees of fewer nodes are padded.
    """
    rows = zip(tokens.cpu(), scores.cpu(), parents.cpu(), retrieval.evidence, strict=True)
    _, trust, min_probability, top_k, prices = retrieval
    return as_tree(
        root,
        [
            likeliest(evidence, num_tokens, top_k, min_probability, DrafterCandidates(*candidates), trust, prices)
            for *candidates, evidence in rows
        ],
    )


def likeliest(
    evidence: Evidence,
    num_tokens: int,
    top_k: int,
    min_probability: float = 0.0,
    candidates: DrafterCandidates | None = None,
    trust: float = 1.0,
    prices: Sequence[float] = (),
) -> Nodes:
    """The likeliest num_tokens - 1 nodes below a root whose probability is at least `min_probability`.

    prices: of trees of k nodes, by k, in accepted tokens; of the likeliest k nodes those are kept whose probabilities
    exceed their price the most.  Empty: nodes cost nothing.

    A token below a node has probability w / (W + d): w is the weight of the occurrences that continue with it, W the
    weight of all occurrences, d the doubt.  Where the drafter has candidates it is (w + t d q) / (W + t d), with the
    drafter's probability q and t = `trust`.  Ties go by level, then by order of creation, drafted siblings first.
    """
    if kernels := retrieval_kernels():
        occurrences = evidence.weights, evidence.ahead, evidence.doubt, evidence.length_weight
        return Nodes(*kernels.likeliest(*occurrences, num_tokens, top_k, min_probability, candidates, trust, prices))
    return likeliest_in_python(evidence, num_tokens, top_k, min_probability, candidates, trust, prices)


def likeliest_in_python(
    evidence: Evidence,
    num_tokens: int,
    top_k: int,
    min_probability: float,
    candidates: DrafterCandidates | None,
    trust: float,
    prices: Sequence[float],
) -> Nodes:
    """As `likeliest`, without native.c."""
    children = {} if candidates is None else candidates.children()
    frontier: list[tuple] = []
    nodes: list[tuple[int, int, int, float]] = []  # level, parent, token, probability
    reached, level, parent, candidate, created = 1.0, 0, -1, -1, 0
    occurrences: Sequence[tuple[float, list[int]]] = evidence.occurrences
    while True:
        shares, continuations = split_occurrences(occurrences, level)
        guesses = children.get(candidate, {})
        doubt = evidence.doubt / evidence.length_weight**level  # here every occurrence matches `level` more tokens
        doubt *= trust if guesses else 1.0
        total = reduce(add, shares.values(), 0.0) + doubt  # in this order; `sum` compensates for rounding
        best = sorted(shares, key=shares.__getitem__, reverse=True)[:top_k] if len(shares) > 1 else shares
        for token in dict.fromkeys((*guesses, *best)):
            guess, child = guesses.get(token, (0.0, None))
            likely = reached * ((shares.get(token, 0.0) + doubt * guess) / total)
            if likely >= min_probability and likely > 0.0:
                heappush(frontier, (-likely, level + 1, created, token, parent, child, continuations.get(token, ())))
                created += 1
        if not frontier or len(nodes) >= num_tokens - 1:
            break
        likely, level, _, token, above, candidate, occurrences = heappop(frontier)
        reached, parent = -likely, len(nodes)
        nodes.append((level, above, token, reached))
    if prices:
        worth = [probability - price for probability, price in zip(_sums(nodes), prices, strict=False)]
        nodes = nodes[: max(range(len(worth)), key=worth.__getitem__)]
    order = sorted(range(len(nodes)), key=lambda node: nodes[node][0])
    index = {-1: 0} | {node: number for number, node in enumerate(order, start=1)}
    levels, parents, tokens, likely = zip(*(nodes[node] for node in order), strict=True) if nodes else ((),) * 4
    return Nodes(list(tokens), [index[node] for node in parents], list(levels), list(likely))


def _sums(nodes: Sequence[tuple[int, int, int, float]]) -> list[float]:
    """Summed probability of the first k nodes, by k."""
    return list(accumulate((node[3] for node in nodes), initial=0.0))


def split_occurrences(
    occurrences: Sequence[tuple[float, list[int]]], level: int
) -> tuple[dict[int, float], dict[int, list]]:
    """Weight of each token that follows at this level, and the occurrences that continue with it."""
    shares: dict[int, float] = {}
    continuations: dict[int, list] = {}
    for occurrence in occurrences:
        weight, ahead = occurrence
        token = ahead[level] if level < len(ahead) else SEPARATOR
        if token in shares:
            shares[token] += weight
            continuations[token].append(occurrence)
        elif token != SEPARATOR:
            shares[token] = weight
            continuations[token] = [occurrence]
    return shares, continuations


def as_tree(root: Tensor, rows: Sequence[Nodes]) -> Tree:
    """Trees below the roots [B], padded to the largest."""
    size = 1 + max(len(row.tokens) for row in rows)
    tokens, parents, levels = [], [], []
    for token, row in zip(root.tolist(), rows, strict=True):
        padding = [0] * (size - 1 - len(row.tokens))
        tokens.append([token, *row.tokens, *padding])
        parents.append([0, *row.parents, *range(1 + len(row.tokens), size)])
        levels.append([0, *row.levels, *padding])
    parts = torch.tensor([tokens, parents, levels], device=root.device).unbind()
    return Tree(*parts, expected=[sum(row.probabilities) for row in rows], proposals=rows)


def join_trees(parts: Sequence[tuple[Sequence[int], Tree]], batch: int) -> Tree:
    """Join trees of disjoint rows, [batch, T], padded to the largest."""
    if len(parts) == 1:
        return parts[0][1]
    size = max(tree.tokens.shape[1] for _, tree in parts)
    device = parts[0][1].tokens.device
    tokens, levels = (torch.zeros(batch, size, dtype=torch.long, device=device) for _ in range(2))
    parents = torch.arange(size, device=device).repeat(batch, 1)
    expected: list[float] | None = [0.0] * batch
    proposals: list[Proposals | None] = [None] * batch
    for rows, tree in parts:
        count = tree.tokens.shape[1]
        if tree.expected is None:
            expected = None
        elif expected is not None:
            for row, tokens_expected in zip(rows, tree.expected, strict=True):
                expected[row] = tokens_expected
        for row, row_proposals in zip(rows, tree.proposals or (), strict=False):
            proposals[row] = row_proposals
        tokens[rows, :count], parents[rows, :count], levels[rows, :count] = tree.tokens, tree.parents, tree.levels
    return Tree(tokens, parents, levels, expected, proposals)
