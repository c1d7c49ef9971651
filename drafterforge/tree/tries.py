"""What retrieval knows of each row's text as tries of fixed capacity, so that the device merges them with drafts.

`merge.likeliest` defines the result; here the same probabilities are computed for all nodes at once, without waiting
for the device.  Axes: B rows, R trie nodes, P pool candidates of the drafter, T tree nodes, D levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heappop, heappush
from itertools import count
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.kernels.trees import cut, ordered
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import split_occurrences

ROOT, UNMATCHED = -1, -2  # indices of a parent: the root, and none
NUM_SCALARS = 5


class MergeRule(NamedTuple):
    """How retrieval's evidence and a drafter's distribution are weighed in one row."""

    trust: float  # see `RetrievalEvidence`
    min_probability: float
    drafts: bool  # whether the drafter's candidates join the tree
    min_reach: float  # probability of a level's best parents together below which the level is not drafted
    ignorance: float  # weight of the drafter's distribution against the evidence, in [0, 1]


@dataclass(frozen=True)
class Tries:
    """Tries and rules of all rows, on the device."""

    tokens: Tensor  # [B, R]
    parents: Tensor  # [B, R] index in the trie, or ROOT
    levels: Tensor  # [B, R] from 1; 0: padding
    proposed: Tensor  # [B, R] 1: retrieval proposes the node; 0: it counts only if the drafter proposes it
    weights: Tensor  # [B, R] of the occurrences that continue with the node
    totals: Tensor  # [B, R + 1] weights of all occurrences that continue below the root, and below each node
    doubts: Tensor  # [B, R + 1] of the root's children, and of each node's
    rules: Tensor  # [B, NUM_SCALARS] see `MergeRule`

    @staticmethod
    def unpack(packed: Tensor) -> Tries:
        """Tries from the numbers of `pack_tries`, [B, 7R + 2 + NUM_SCALARS]."""
        size = (packed.shape[1] - 2 - NUM_SCALARS) // 7
        parts = packed.split([size] * 5 + [size + 1] * 2 + [NUM_SCALARS], dim=1)
        return Tries(*(part.long() for part in parts[:3]), *parts[3:])


def num_packed(capacity: int) -> int:
    """Numbers of a row in `pack_tries`.  capacity: R."""
    return 7 * capacity + 2 + NUM_SCALARS


def pack_tries(
    evidence: Sequence[Evidence | None], rules: Sequence[MergeRule], shapes: Sequence[TreeShape], capacity: int
) -> Tensor:
    """The tries of all rows in one tensor of the host, float64.

    evidence: of each row; None: it has none.  shapes: of the rows' trees.  capacity: R.
    """
    packed = torch.zeros(len(evidence), num_packed(capacity), dtype=torch.float64)
    packed[:, 6 * capacity + 1 : 7 * capacity + 2] = 1.0  # doubts where there is no evidence
    for row, (occurrences, rule, shape) in enumerate(zip(evidence, rules, shapes, strict=True)):
        packed[row, -NUM_SCALARS:] = torch.tensor(rule, dtype=torch.float64)
        if occurrences is not None:
            _fill(packed[row], occurrences, capacity, shape.top_k, shape.depth)
    return packed


def _fill(numbers: Tensor, evidence: Evidence, capacity: int, top_k: int, depth: int) -> None:
    """Write one row's trie: the nodes that most occurrences lead to."""
    columns: list[list[float]] = [[], [], [], [], []]  # tokens, parents, levels, proposed, weights
    tokens, totals, doubts = columns[0], [], []
    frontier: list[tuple] = [(-1.0, 0, (0, ROOT, 0, 0, 0.0), evidence.occurrences)]
    created = count(1)
    while frontier and len(tokens) <= capacity:
        reached, _, node, occurrences = heappop(frontier)
        level, index = node[2], ROOT
        if level:
            if len(tokens) == capacity:
                break
            index = len(tokens)
            for column, value in zip(columns, node, strict=True):
                column.append(value)
        shares, followers = split_occurrences(occurrences, level)
        total = reduce(add, shares.values(), 0.0)  # as in `merge.likeliest`
        totals.append(total)
        doubts.append(evidence.doubt / evidence.length_weight**level)
        if level < depth:
            for rank, token in enumerate(sorted(shares, key=shares.__getitem__, reverse=True)):
                child = token, index, level + 1, int(rank < top_k), shares[token]
                heappush(frontier, (reached * shares[token] / total, next(created), child, followers[token]))
    start = 0
    for column in (*columns, totals, doubts):
        numbers[start : start + len(column)] = torch.tensor(column, dtype=torch.float64)
        start += capacity + (column is totals)


def merge_tries(
    root: Tensor,
    tokens: Tensor,
    scores: Tensor,
    parents: Tensor,
    levels: Tensor,
    tries: Tries,
    num_tokens: int,
    depth: int,
    sizes: Tensor | None = None,
) -> Tree:
    """The root and the likeliest nodes of each row, proposed by the drafter or by retrieval; padded to num_tokens.

    root: [B].  tokens, scores, parents: [B, P] and levels: [P], see `kernels.trees.cut`.  depth: of the deepest node.
    sizes: nodes of each row at most, [B].
    """
    trust, min_probability, drafts = (tries.rules[:, column : column + 1] for column in range(3))
    drafted = (scores > -torch.inf) & (drafts > 0)
    match = _match(tokens, parents, drafted, tries, depth)
    batch, size = tokens.shape
    twin = torch.full((batch, size + 1), UNMATCHED, dtype=torch.long, device=tokens.device)
    index = torch.arange(match.shape[1], device=tokens.device).expand(batch, -1)
    twin = twin.scatter(1, torch.where(match >= 0, match, size), index)[:, :size]
    # conditional probabilities of the drafter's candidates
    above = torch.where(parents >= 0, scores.gather(1, parents.clamp(min=0)), 0.0)
    guess = torch.where(drafted, (scores.double() - above.double()).exp(), 0.0)
    node = torch.where(parents < 0, ROOT, twin.gather(1, parents.clamp(min=0)))  # the trie's node of each parent
    total = torch.where(node >= ROOT, tries.totals.gather(1, (node + 1).clamp(min=0)), 0.0)
    doubt = trust * torch.where(node >= ROOT, tries.doubts.gather(1, (node + 1).clamp(min=0)), 1.0)
    weight = torch.where(twin >= 0, tries.weights.gather(1, twin.clamp(min=0)), 0.0)
    likely = (weight + doubt * guess) / (total + doubt)
    # conditional probabilities of retrieval's nodes, which the drafter does not know
    match_above = torch.where(tries.parents < 0, ROOT, match.gather(1, tries.parents.clamp(min=0)))
    has_guesses = torch.zeros(batch, size + 2, dtype=torch.bool, device=tokens.device)
    has_guesses = has_guesses.scatter(1, torch.where(drafted, parents + 1, size + 1), True)
    guessed = (match_above >= ROOT) & has_guesses.gather(1, (match_above + 1).clamp(min=0))
    trie_doubt = tries.doubts.gather(1, tries.parents + 1) * torch.where(guessed, trust, 1.0)
    trie_likely = tries.weights / (tries.totals.gather(1, tries.parents + 1) + trie_doubt)
    added = (tries.levels > 0) & (match < 0)
    trie_likely = torch.where(tries.proposed > 0, trie_likely, 0.0)
    # probabilities of the paths: level by level, a node after its parent
    reach, trie_reach = likely, trie_likely
    for _ in range(depth - 1):
        reach = likely * torch.where(parents < 0, 1.0, reach.gather(1, parents.clamp(min=0)))
        before = torch.where(
            match_above >= 0,
            reach.gather(1, match_above.clamp(min=0)),
            trie_reach.gather(1, tries.parents.clamp(min=0)),
        )
        trie_reach = trie_likely * torch.where(tries.parents < 0, 1.0, before)
    probability = torch.cat((torch.where(drafted, reach, 0.0), torch.where(added, trie_reach, 0.0)), dim=1)
    alive = (probability >= min_probability) & (probability > 0)
    best = torch.where(alive, probability, -torch.inf)
    counts = 1 + alive.sum(dim=1).clamp(max=num_tokens - 1)
    if sizes is not None:
        counts = torch.minimum(counts, sizes)
    trie_parents = torch.where(match_above >= ROOT, match_above, size + tries.parents)
    return Tree(
        *cut(
            root,
            torch.cat((tokens, tries.tokens), dim=1),
            best,
            torch.cat((parents, trie_parents), dim=1),
            torch.cat((levels.expand(batch, -1), tries.levels), dim=1),
            num_tokens,
            counts,
        )
    )


def _match(tokens: Tensor, parents: Tensor, drafted: Tensor, tries: Tries, depth: int) -> Tensor:
    """The drafter's candidate with the path of each trie node, [B, R], or UNMATCHED."""
    match = torch.full_like(tries.tokens, UNMATCHED)
    for level in range(1, depth + 1):
        above = torch.where(tries.parents < 0, ROOT, match.gather(1, tries.parents.clamp(min=0)))
        equal = (tokens[:, None] == tries.tokens[:, :, None]) & (parents[:, None] == above[:, :, None])
        equal &= drafted[:, None] & (tries.levels == level)[:, :, None]
        match = torch.where(equal.any(dim=2), equal.long().argmax(dim=2), match)
    return match


class TrieDecisions:
    """`LevelDecisions` of hybrids: a level is drafted if its parents are likely enough to be accepted."""

    def __init__(self, tries: Tries, top_k: int) -> None:
        self.min_reach, self.ignorance, self.top_k = tries.rules[:, 3], tries.rules[:, 4], top_k

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `LevelDecisions`."""
        best = scores.gather(1, ordered(scores)[:, : self.top_k])
        return best.exp().sum(dim=1) * self.ignorance >= self.min_reach

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """As many as there are: probabilities decide."""
        return torch.full_like(depths, scores.shape[1] + 1)
