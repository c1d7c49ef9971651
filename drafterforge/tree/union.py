"""Trees of several widths drafted at once, and where the truth stands in each of them.

A node's children depend on its path alone, but which nodes are expanded depends on the width: the beam of a narrow
tree is not always part of a wider one.  So each level expands the union of all widths' beams, and every width keeps
its own beam and pool over it, in the order of `grow`.
Axes: B rows, K widths, D levels, U nodes expanded, C children of each, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.tree.expand import Step
from drafterforge.tree.grow import ordered, top_children

MISSING = 65535  # rank of a truth that is no candidate


@dataclass(frozen=True)
class Drafts:
    """What trees of all widths and depths would propose below each root."""

    ranks: Tensor  # [B, K, D, D] of the truth: (b, k, d - 1, j - 1) is its level j's place among the pool of d levels,
    # from 1; MISSING where it is no candidate or j > d
    scores: Tensor  # [B, S] cumulative log-probabilities of all candidates of the told width, level by level


@dataclass
class Width:
    """The beam and the pool of one width so far."""

    top_k: int
    place: Tensor  # [B, k] its beam among the nodes expanded, in beam order
    at: Tensor  # [B] place of the truth in the beam, -1 where it has left
    pools: list[Tensor]  # scores of each level, [B, k] and then [B, k * k]
    found: list[Tensor] = field(default_factory=list)  # index of the truth in each level's pool, [B], -1: not there


def expand_widths(
    logits: Tensor,
    top_ks: Sequence[int],
    depth: int,
    truth: Tensor,
    step: Step,
    token_ids: Tensor | None = None,
    told: int | None = None,
) -> Drafts:
    """Draft below each root from the logits [B, W] of its children.

    truth: target ids that follow the root, [B, D], -1 where nothing does.  step, token_ids: as in `expand`.  told:
    width whose scores are returned; None: none.
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
    widths = []
    for top_k in top_ks:
        at = _place_of(tokens[:, :top_k] == truth[:, :1])
        widths.append(Width(top_k, first[:, :top_k], at, [scores[:, :top_k]], [at]))
    for level in range(1, depth):
        count = tokens.shape[1]
        own = torch.eye(count, dtype=torch.bool, device=logits.device).expand(batch, -1, -1)
        reads = torch.cat((reads.gather(1, origin[:, :, None].expand(-1, -1, reads.shape[2])), own), dim=2)
        logp, ids = top_children(step(level, tokens, origin, reads), most)
        children = ids if token_ids is None else token_ids[ids]
        cumulative = scores[:, :, None] + logp
        keys = torch.cat([_grow(one, cumulative, children, truth[:, level], rows) for one in widths], dim=1)
        kept = _distinct(keys)
        sizes = [one.top_k for one in widths]
        for one, mine in zip(widths, keys.split(sizes, dim=1), strict=True):
            one.place = torch.searchsorted(kept, mine.contiguous())
        tokens, scores = children.flatten(1).gather(1, kept), cumulative.flatten(1).gather(1, kept)
        origin = kept // most
    ranks = torch.stack([_ranks(one) for one in widths], dim=1)
    asked = next((one for one in widths if one.top_k == told), None)
    empty = scores.new_empty(batch, 0)
    return Drafts(ranks, empty if asked is None else torch.cat(asked.pools, dim=1))


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
    beam = ordered(pool)[:, :top_k]
    width.pools.append(pool)
    width.found.append(found)
    width.at = _place_of((beam == found[:, None]) & (found >= 0)[:, None])
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


def _ranks(width: Width) -> Tensor:
    """Places of the truth in the pools of one width, see `Drafts.ranks`, [B, D, D]."""
    depth, batch = len(width.pools), len(width.at)
    ranks = torch.full((batch, depth, depth), MISSING, dtype=torch.long, device=width.at.device)
    for j, (pool, found) in enumerate(zip(width.pools, width.found, strict=True)):
        score = pool.gather(1, found.clamp(min=0)[:, None])
        rank = torch.ones_like(found)
        for level, other in enumerate(width.pools):
            ahead = other > score
            if level < j:
                ahead |= other == score
            elif level == j:
                index = torch.arange(other.shape[1], device=other.device)
                ahead |= (other == score) & (index < found[:, None])
            rank = rank + ahead.sum(dim=1)
            if level >= j:
                ranks[:, level, j] = torch.where(found >= 0, rank, MISSING)
    return ranks
