"""Trees of what retrieval proposes, alone or together with an EAGLE-3 drafter.

Together, the drafter's law is the prior of a count: where nothing of the kind was seen before, it decides; the more
occurrences there are, and the longer they match, the more they do (Dirichlet smoothing; MacKay and Peto, 1995).
Axes: B rows, P pool candidates of the drafter, T tree nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.tree.evidence import SEPARATOR, Evidence
from drafterforge.tree.grow import Tree


class Others(NamedTuple):
    """What retrieval knows of each row's text, and how much it counts."""

    evidence: Sequence[Evidence]
    trust: float  # the drafter's law weighs as much as so many doubts
    least: float  # probability of a node that is kept, all its ancestors included
    top_k: int  # tokens that retrieval proposes below one node

    def of(self, rows: Sequence[int]) -> Others:
        """Of some rows."""
        return self._replace(evidence=[self.evidence[row] for row in rows])


class Nodes(NamedTuple):
    """Nodes of one row's tree in level order, likelier ones of a level first."""

    tokens: list[int]
    parents: list[int]  # 0 is the root, which is not among them, 1 the first of them
    levels: list[int]  # from 1
    probabilities: list[float]  # that all of the path is accepted


class Drafted(NamedTuple):
    """An EAGLE-3 drafter's candidates for one row, see `cut_tree`."""

    tokens: Sequence[int] = ()
    scores: Sequence[float] = ()  # cumulative log-probabilities; -inf is no candidate
    parents: Sequence[int] = ()  # places, -1 for the root's children

    def below(self) -> dict[int | None, dict[int, tuple[float, int]]]:
        """By the place of their parent: its children's tokens, probabilities given it, and places."""
        found: dict[int | None, dict[int, tuple[float, int]]] = {}
        for place, (token, score, parent) in enumerate(zip(*self, strict=True)):
            if score > -math.inf:
                above = self.scores[parent] if parent >= 0 else 0.0
                found.setdefault(parent, {})[token] = math.exp(score - above), place
        return found


NOTHING = Drafted()


def merged_tree(root: Tensor, tokens: Tensor, scores: Tensor, parents: Tensor, num_tokens: int, others: Others) -> Tree:
    """The root and the likeliest num_tokens - 1 nodes of each row that either proposes.

    root: [B].  tokens, scores, parents: [B, P], see `cut_tree`.  Trees of fewer nodes are padded.
    """
    rows = zip(tokens.tolist(), scores.tolist(), parents.tolist(), others.evidence, strict=True)
    _, trust, least, top_k = others
    return as_tree(root, [likeliest(one, num_tokens, top_k, least, Drafted(*drafted), trust) for *drafted, one in rows])


def likeliest(
    evidence: Evidence,
    num_tokens: int,
    top_k: int,
    least: float = 0.0,
    drafted: Drafted = NOTHING,
    trust: float = 1.0,
) -> Nodes:
    """The likeliest num_tokens - 1 nodes below a root, of those that are not less likely than `least`.

    Below a node a token has probability w / (W + d): w is the weight of the occurrences that go on with it, W that of
    all, and d that of doubt.  Where children were drafted it is (w + d q) / (W + d), q the drafter's probability and d
    `trust` times as much.  Equal nodes come by level, then as found, of siblings drafted ones
    first.
    """
    below = drafted.below()
    frontier: list[tuple] = []
    nodes: list[tuple[int, int, int, float]] = []  # level, parent, token, probability
    reached, level, parent, place, found = 1.0, 0, -1, -1, 0
    occurrences: Sequence[tuple[float, list[int]]] = evidence.occurrences
    while True:
        shares, behind = _split(occurrences, level)
        guesses = below.get(place, {})
        doubt = evidence.doubt / evidence.length_weight**level  # every occurrence here matches `level` tokens more
        doubt *= trust if guesses else 1.0
        total = sum(shares.values()) + doubt
        best = sorted(shares, key=shares.__getitem__, reverse=True)[:top_k] if len(shares) > 1 else shares
        for token in dict.fromkeys((*guesses, *best)):
            guess, drawn = guesses.get(token, (0.0, None))
            likely = reached * ((shares.get(token, 0.0) + doubt * guess) / total)
            if likely >= least and likely > 0.0:
                heappush(frontier, (-likely, level + 1, found, token, parent, drawn, behind.get(token, ())))
                found += 1
        if not frontier or len(nodes) >= num_tokens - 1:
            break
        likely, level, _, token, above, place, occurrences = heappop(frontier)
        reached, parent = -likely, len(nodes)
        nodes.append((level, above, token, reached))
    order = sorted(range(len(nodes)), key=lambda node: nodes[node][0])
    index = {-1: 0} | {node: number for number, node in enumerate(order, start=1)}
    levels, parents, tokens, likely = zip(*(nodes[node] for node in order), strict=True) if nodes else ((),) * 4
    return Nodes(list(tokens), [index[node] for node in parents], list(levels), list(likely))


def _split(occurrences: Sequence[tuple[float, list[int]]], level: int) -> tuple[dict[int, float], dict[int, list]]:
    """Weights of the tokens at this level of what followed, and the occurrences behind each."""
    shares: dict[int, float] = {}
    behind: dict[int, list] = {}
    for occurrence in occurrences:
        weight, ahead = occurrence
        token = ahead[level] if level < len(ahead) else SEPARATOR
        if token in shares:
            shares[token] += weight
            behind[token].append(occurrence)
        elif token != SEPARATOR:
            shares[token] = weight
            behind[token] = [occurrence]
    return shares, behind


def as_tree(root: Tensor, rows: Sequence[Nodes]) -> Tree:
    """Trees below the roots [B], the smaller ones padded."""
    size = 1 + max(len(row.tokens) for row in rows)
    parts = [
        (
            [token, *row.tokens, *[0] * (size - 1 - len(row.tokens))],
            [0, *row.parents, *range(1 + len(row.tokens), size)],
            [0, *row.levels, *[0] * (size - 1 - len(row.tokens))],
        )
        for token, row in zip(root.tolist(), rows, strict=True)
    ]
    return Tree(*(torch.tensor(part, device=root.device) for part in zip(*parts, strict=True)))


def beside(parts: Sequence[tuple[Sequence[int], Tree]], batch: int) -> Tree:
    """Trees of disjoint rows in one, [batch, T]; the smaller ones padded."""
    if len(parts) == 1:
        return parts[0][1]
    size = max(tree.tokens.shape[1] for _, tree in parts)
    device = parts[0][1].tokens.device
    tokens, levels = (torch.zeros(batch, size, dtype=torch.long, device=device) for _ in range(2))
    parents = torch.arange(size, device=device).repeat(batch, 1)
    for rows, tree in parts:
        count = tree.tokens.shape[1]
        tokens[rows, :count], parents[rows, :count], levels[rows, :count] = tree.tokens, tree.parents, tree.levels
    return Tree(tokens, parents, levels)
