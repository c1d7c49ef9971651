"""One tree from the candidates of two drafters: the best of either, each path once.

Both name cumulative log-probabilities.  A path that both propose has the better of its two scores, so that parents
never score less than their children, and the best n nodes are closed under ancestors as in `grow`.
Axes: B rows, P pool candidates of the first drafter, T tree nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.drafter.retrieval import Candidates
from drafterforge.tree.grow import Tree


class Others(NamedTuple):
    """What a second drafter proposes for each row, and the score below which no node of either is kept."""

    candidates: Sequence[Candidates]
    floor: float = -math.inf


def merged_tree(
    root: Tensor,
    tokens: Tensor,
    scores: Tensor,
    parents: Tensor,
    levels: Tensor,
    num_tokens: int,
    others: Others,
) -> Tree:
    """The root and the best num_tokens - 1 nodes of each row's pool and its other candidates.

    root: [B].  tokens, scores, parents: [B, P], see `cut_tree`.  levels: [P].  Trees of fewer nodes are padded.
    """
    rows = zip(root.tolist(), tokens.tolist(), scores.tolist(), parents.tolist(), others.candidates, strict=True)
    trees = [_merged(*row, levels.tolist(), num_tokens, others.floor) for row in rows]
    size = max(len(tree[0]) for tree in trees)
    padded = [
        (
            [*tokens, *[0] * (size - len(tokens))],
            [*parents, *range(len(parents), size)],
            [*levels, *[0] * (size - len(levels))],
        )
        for tokens, parents, levels in trees
    ]
    return Tree(*(torch.tensor(part, device=root.device) for part in zip(*padded, strict=True)))


def _merged(
    root: int,
    tokens: list[int],
    scores: list[float],
    parents: list[int],
    other: Candidates,
    levels: list[int],
    num_tokens: int,
    floor: float,
) -> tuple[list[int], list[int], list[int]]:
    """Tokens, parents and levels of one row's tree."""
    tokens, scores, parents, levels = list(tokens), list(scores), list(parents), list(levels)
    alive = (place for place, score in enumerate(scores) if score > -math.inf)  # of rows that ended the rest is no node
    known = {(parents[place], tokens[place]): place for place in alive}
    here = {-1: -1}  # places of the other's candidates in the pool
    for at, (token, parent, level, score) in enumerate(zip(*other, strict=True)):
        key = here[parent], token
        if key in known:
            scores[known[key]] = max(scores[known[key]], score)
        else:
            known[key] = len(tokens)
            tokens.append(token)
            scores.append(score)
            parents.append(key[0])
            levels.append(level)
        here[at] = known[key]
    best = sorted(range(len(tokens)), key=lambda place: (-scores[place], levels[place], place))[: num_tokens - 1]
    worth = [place for place in best if scores[place] >= floor and scores[place] > -math.inf]  # -inf: a row that ended
    kept = sorted(worth, key=lambda place: (levels[place], -scores[place], place))
    node = {-1: 0} | {place: index for index, place in enumerate(kept, start=1)}
    return (
        [root, *(tokens[place] for place in kept)],
        [0, *(node[parents[place]] for place in kept)],
        [0, *(levels[place] for place in kept)],
    )
