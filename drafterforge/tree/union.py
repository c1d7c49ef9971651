"""Trees of several widths drafted at once, and where the truth stands in each of them.

A node's children depend on its path alone, but which nodes are expanded depends on the width: the beam of a narrow
tree is not always part of a wider one.  So each level expands the union of all widths' beams, and every width keeps
its own beam and pool over it, in the order of `grow`.
Axes: B rows, K widths, D levels, U nodes expanded, C children of each (of the widest), W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.kernels.trees import ordered
from drafterforge.tree.expand import Step
from drafterforge.tree.grow import top_children

MISSING = 65535  # rank of what is no candidate


@dataclass(frozen=True)
class Drafts:
    """What trees of all widths and depths would propose below each root."""

    ranks: Tensor  # [B, K, D, D] of the truth: (b, k, d - 1, j - 1) is its level j's place among the pool of d levels,
    # from 1; MISSING where it is no candidate or j > d
    scores: Tensor  # [B, S] cumulative log-probabilities of all candidates of the told width, level by level
    branch: Branch | None = None  # if it was asked for


@dataclass(frozen=True)
class Branch:
    """The branch of always the best child below each root: the root, its best child, that one's best child, and so on.

    Whatever a tree keeps of a node's children, it keeps the best ones; so this is every tree's most probable branch.
    """

    tokens: Tensor  # [B, D, C] target ids of the children of its D nodes, best first; -1 where no width expands a node
    ranks: Tensor  # [B, K, D, D, C] of these children, as `Drafts.ranks`


@dataclass
class Width:
    """The beam and the pool of one width so far."""

    top_k: int
    place: Tensor  # [B, k] its beam among the nodes expanded, in beam order
    at: Tensor  # [B] place of the truth in the beam, -1 where it has left
    best: Tensor  # [B] place of the branch's node in the beam, -1 where it has left
    pools: list[Tensor]  # scores of each level, [B, k] and then [B, k * k]
    found: list[Tensor] = field(default_factory=list)  # index of the truth in each level's pool, [B], -1: not there
    below: list[Tensor] = field(default_factory=list)  # the same for the branch's node of that level, the best child


def expand_widths(
    logits: Tensor,
    top_ks: Sequence[int],
    depth: int,
    truth: Tensor,
    step: Step,
    token_ids: Tensor | None = None,
    told: int | None = None,
    branch: bool = False,
) -> Drafts:
    """Draft below each root from the logits [B, W] of its children.

    truth: target ids that follow the root, [B, D], -1 where nothing does.  step, token_ids: as in `expand`.  told:
    width whose scores are returned; None: none.  branch: whether `Drafts.branch` is returned.
    """
    batch, most = len(logits), max(top_ks)
    if most > logits.shape[-1]:
        raise ConfigError(f"top_k={most} asks for more children than the draft vocabulary of {logits.shape[-1]} has")
    rows = torch.arange(batch, device=logits.device)
    scores, ids = top_children(logits, most)
    tokens = ids if token_ids is None else token_ids[ids]
    origin = torch.zeros_like(ids)
    first = torch.arange(most, device=logits.device).expand(batch, -1)
    reads = torch.empty(batch, most, 0, dtype=torch.bool, device=logits.device)
    widths, best, names = [], torch.zeros_like(rows), [tokens]
    for top_k in top_ks:
        at = _place_of(tokens[:, :top_k] == truth[:, :1])
        widths.append(Width(top_k, first[:, :top_k], at, best, [scores[:, :top_k]], [at], [best]))
    for level in range(1, depth):
        count = tokens.shape[1]
        own = torch.eye(count, dtype=torch.bool, device=logits.device).expand(batch, -1, -1)
        reads = torch.cat((reads.gather(1, origin[:, :, None].expand(-1, -1, reads.shape[2])), own), dim=2)
        logp, ids = top_children(step(level, tokens, origin, reads), most)
        children = ids if token_ids is None else token_ids[ids]
        cumulative = scores[:, :, None] + logp
        names.append(_names(widths, children, rows))
        keys = torch.cat([_grow(one, cumulative, children, truth[:, level], rows) for one in widths], dim=1)
        kept = _distinct(keys)
        sizes = [one.top_k for one in widths]
        for one, mine in zip(widths, keys.split(sizes, dim=1), strict=True):
            one.place = torch.searchsorted(kept, mine.contiguous())
        tokens, scores = children.flatten(1).gather(1, kept), cumulative.flatten(1).gather(1, kept)
        origin = kept // most
    ranks = torch.stack([_ranks(one.pools, [at[:, None] for at in one.found]) for one in widths], dim=1)[..., 0]
    asked = next((one for one in widths if one.top_k == told), None)
    empty = scores.new_empty(batch, 0)
    told_scores = empty if asked is None else torch.cat(asked.pools, dim=1)
    if not branch:
        return Drafts(ranks, told_scores)
    below = [_ranks(one.pools, [_children(at, one.top_k, most) for at in one.below]) for one in widths]
    return Drafts(ranks, told_scores, Branch(torch.stack(names, dim=1), torch.stack(below, dim=1)))


def _grow(width: Width, cumulative: Tensor, children: Tensor, truth: Tensor, rows: Tensor) -> Tensor:
    """One level more for a width: its next beam as indices of children of the nodes expanded, [B, k] of U * C.

    cumulative, children: [B, U, C].  truth: [B] the token of the new level.
    """
    top_k, most = width.top_k, cumulative.shape[2]
    index = width.place[:, :, None].expand(-1, -1, top_k)
    pool = cumulative[:, :, :top_k].gather(1, index).flatten(1)
    tokens = children[:, :, :top_k].gather(1, index)
    hit = _place_of(tokens[rows, width.at.clamp(min=0)] == truth[:, None])
    found = torch.where((width.at >= 0) & (hit >= 0), width.at * top_k + hit, -1)
    below = torch.where(width.best >= 0, width.best * top_k, -1)
    beam = ordered(pool)[:, :top_k]
    width.pools.append(pool)
    width.found.append(found)
    width.below.append(below)
    width.at, width.best = (_place_of((beam == one[:, None]) & (one >= 0)[:, None]) for one in (found, below))
    return width.place.gather(1, beam // top_k) * most + beam % top_k


def _place_of(hits: Tensor) -> Tensor:
    """Index of the one hit in each row of [B, n], -1 where there is none."""
    return torch.where(hits.any(dim=1), hits.long().argmax(dim=1), -1)


def _distinct(keys: Tensor) -> Tensor:
    """Each row of [B, n] sorted without repetition, the shorter rows padded with their largest."""
    keys = keys.sort(dim=1).values
    fresh = torch.ones_like(keys, dtype=torch.bool)
    fresh[:, 1:] = keys[:, 1:] != keys[:, :-1]
    place = fresh.cumsum(dim=1) - 1
    kept = keys[:, -1:].repeat(1, int(place.max()) + 1)
    return kept.scatter_(1, place, keys)


def _names(widths: Sequence[Width], children: Tensor, rows: Tensor) -> Tensor:
    """Target ids of the children [B, C] of the branch's node, of all children [B, U, C]; -1 where it has left."""
    found = torch.full_like(children[:, 0], -1)
    for one in widths:
        at = one.place.gather(1, one.best.clamp(min=0)[:, None])[:, 0]
        found = torch.where((one.best >= 0)[:, None], children[rows, at], found)
    return found


def _children(first: Tensor, top_k: int, most: int) -> Tensor:
    """Indices in a pool of the children of a node, of which `first` [B] is the best, [B, C]; -1: not there."""
    column = torch.arange(most, device=first.device)
    return torch.where((first >= 0)[:, None] & (column < top_k), first[:, None] + column, -1)


def _ranks(pools: Sequence[Tensor], found: Sequence[Tensor]) -> Tensor:
    """Places of candidates among the pools of one width, see `Drafts.ranks`, [B, D, D, n].

    found: their indices in the pool of each level, [B, n], -1: not there.
    """
    depth, (batch, count) = len(pools), found[0].shape
    ranks = torch.full((batch, depth, depth, count), MISSING, dtype=torch.long, device=found[0].device)
    for j, (pool, index) in enumerate(zip(pools, found, strict=True)):
        score = pool.gather(1, index.clamp(min=0))[:, :, None]
        rank = torch.ones_like(index)
        for level, scores in enumerate(pools):
            other = scores[:, None]
            ahead = other > score
            if level < j:
                ahead |= other == score
            elif level == j:
                ahead |= (other == score) & (torch.arange(other.shape[2], device=index.device) < index[:, :, None])
            rank = rank + ahead.sum(dim=2)
            if level >= j:
                ranks[:, level, j] = torch.where(index >= 0, rank, MISSING)
    return ranks
