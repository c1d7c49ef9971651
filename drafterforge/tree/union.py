"""Drafts trees of several widths at once, and ranks the target's tokens among the candidates of each.

A node's children depend on its path alone, but which nodes are expanded depends on the width: the beam of a narrow
tree is not always part of a wider one.  So each level expands the union of all widths' beams, and every width keeps
its own beam and pool, in the order of `grow`.
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

MISSING = 65535  # rank of a token that is no candidate


@dataclass(frozen=True)
class Drafts:
    """What trees of all widths and depths would propose below each root."""

    ranks: Tensor  # [B, K, D, D] of the truth: (b, k, d - 1, j - 1) ranks its token of level j in the pool of d
    # levels, from 1; MISSING where it is no candidate or j > d
    scores: Tensor  # [B, S] cumulative log-probabilities of all candidates of `scored_top_k`, level by level
    branch: Branch | None = None  # if requested


@dataclass(frozen=True)
class Branch:
    """The branch of best children below each root: the root, its best child, the best child of that, and so on.

    A tree always keeps the best children of a node, so this is the most probable branch of every tree.
    """

    tokens: Tensor  # [B, D, C] target ids of the children of its D nodes, best first; -1 where no width expands a node
    ranks: Tensor  # [B, K, D, D, C] of these children, as `Drafts.ranks`
    logits: Tensor  # [B, D, W] of all children of its nodes; arbitrary where no width expands a node


@dataclass
class Width:
    """The beam and the pool of one width so far."""

    top_k: int
    beam: Tensor  # [B, k] indices of the beam's nodes among the expanded ones, in beam order
    truth: Tensor  # [B] index of the truth in the beam, -1: not in it
    best: Tensor  # [B] index of the branch's node in the beam, -1: not in it
    pools: list[Tensor]  # scores of each level, [B, k] and then [B, k * k]
    truths: list[Tensor] = field(default_factory=list)  # index of the truth in each level's pool, [B], -1: not in it
    branch: list[Tensor] = field(default_factory=list)  # index of the branch's node in each level's pool, [B], or -1


def expand_widths(
    logits: Tensor,
    top_ks: Sequence[int],
    depth: int,
    truth: Tensor,
    step: Step,
    token_ids: Tensor | None = None,
    scored_top_k: int | None = None,
    branch: bool = False,
) -> Drafts:
    """Draft below each root from the logits [B, W] of its children.

    truth: target ids that follow the root, [B, D], -1 after the end.  step, token_ids: as in `expand`.
    scored_top_k: width whose scores are returned; None: none.  branch: whether `Drafts.branch` is returned.
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
    widths, best, branch_tokens, branch_logits = [], torch.zeros_like(rows), [tokens], [logits.float()]
    for top_k in top_ks:
        index = _index_of(tokens[:, :top_k] == truth[:, :1])
        widths.append(Width(top_k, first[:, :top_k], index, best, [scores[:, :top_k]], [index], [best]))
    for level in range(1, depth):
        count = tokens.shape[1]
        itself = torch.eye(count, dtype=torch.bool, device=logits.device).expand(batch, -1, -1)
        reads = torch.cat((reads.gather(1, origin[:, :, None].expand(-1, -1, reads.shape[2])), itself), dim=2)
        level_logits = step(level, tokens, origin, reads)
        logp, ids = top_children(level_logits, most)
        children = ids if token_ids is None else token_ids[ids]
        cumulative = scores[:, :, None] + logp
        if branch:
            node = _branch_node(widths, rows)
            branch_tokens.append(torch.where(node[:, None] >= 0, children[rows, node], -1))
            branch_logits.append(level_logits[rows, node].float())
        beams = [_grow(width, cumulative, children, truth[:, level], rows) for width in widths]
        union = _distinct(torch.cat(beams, dim=1))
        for width, beam in zip(widths, beams, strict=True):
            width.beam = torch.searchsorted(union, beam.contiguous())
        tokens, scores = children.flatten(1).gather(1, union), cumulative.flatten(1).gather(1, union)
        origin = union // most
    ranks = torch.stack([_ranks(width.pools, [index[:, None] for index in width.truths]) for width in widths], dim=1)
    scored = next((width for width in widths if width.top_k == scored_top_k), None)
    pool_scores = scores.new_empty(batch, 0) if scored is None else torch.cat(scored.pools, dim=1)
    if not branch:
        return Drafts(ranks[..., 0], pool_scores)
    branch_ranks = torch.stack(
        [_ranks(width.pools, [_children(best, width.top_k, most) for best in width.branch]) for width in widths], dim=1
    )
    branch_parts = torch.stack(branch_tokens, dim=1), branch_ranks, torch.stack(branch_logits, dim=1)
    return Drafts(ranks[..., 0], pool_scores, Branch(*branch_parts))


def _grow(width: Width, cumulative: Tensor, children: Tensor, truth: Tensor, rows: Tensor) -> Tensor:
    """Adds a level to a width; returns its next beam as indices of the expanded nodes' children, [B, k] of U * C.

    cumulative, children: [B, U, C].  truth: [B] the token of the new level.
    """
    top_k, most = width.top_k, cumulative.shape[2]
    index = width.beam[:, :, None].expand(-1, -1, top_k)
    pool = cumulative[:, :, :top_k].gather(1, index).flatten(1)
    tokens = children[:, :, :top_k].gather(1, index)
    hit = _index_of(tokens[rows, width.truth.clamp(min=0)] == truth[:, None])
    truth_index = torch.where((width.truth >= 0) & (hit >= 0), width.truth * top_k + hit, -1)
    best_index = torch.where(width.best >= 0, width.best * top_k, -1)
    beam = ordered(pool)[:, :top_k]
    width.pools.append(pool)
    width.truths.append(truth_index)
    width.branch.append(best_index)
    width.truth, width.best = (
        _index_of((beam == index[:, None]) & (index >= 0)[:, None]) for index in (truth_index, best_index)
    )
    return width.beam.gather(1, beam // top_k) * most + beam % top_k


def _index_of(hits: Tensor) -> Tensor:
    """Index of the one hit in each row of [B, n], -1 where there is none."""
    return torch.where(hits.any(dim=1), hits.long().argmax(dim=1), -1)


def _distinct(keys: Tensor) -> Tensor:
    """Each row of [B, n] sorted without repetition; shorter rows are padded with their largest key."""
    keys = keys.sort(dim=1).values
    is_first = torch.ones_like(keys, dtype=torch.bool)
    is_first[:, 1:] = keys[:, 1:] != keys[:, :-1]
    index = is_first.cumsum(dim=1) - 1
    distinct = keys[:, -1:].repeat(1, int(index.max()) + 1)
    return distinct.scatter_(1, index, keys)


def _branch_node(widths: Sequence[Width], rows: Tensor) -> Tensor:
    """Index of the branch's node among the expanded ones, [B]; -1 where no beam has it."""
    node = torch.full_like(rows, -1)
    for width in widths:
        node = torch.where(width.best >= 0, width.beam[rows, width.best.clamp(min=0)], node)
    return node


def _children(first: Tensor, top_k: int, most: int) -> Tensor:
    """Pool indices of a node's children, [B, C], -1: not in it.  first: [B] index of the best child."""
    column = torch.arange(most, device=first.device)
    return torch.where((first >= 0)[:, None] & (column < top_k), first[:, None] + column, -1)


def _ranks(pools: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """Ranks of candidates in the pools of one width, see `Drafts.ranks`, [B, D, D, n].

    indices: of the candidates in the pool of each level, [B, n], -1: not in it.
    """
    depth, (batch, count) = len(pools), indices[0].shape
    ranks = torch.full((batch, depth, depth, count), MISSING, dtype=torch.long, device=indices[0].device)
    for j, (pool, index) in enumerate(zip(pools, indices, strict=True)):
        score = pool.gather(1, index.clamp(min=0))[:, :, None]
        rank = torch.ones_like(index)
        for level, scores in enumerate(pools):
            rivals = scores[:, None]
            ahead = rivals > score
            if level < j:
                ahead |= rivals == score
            elif level == j:
                ahead |= (rivals == score) & (torch.arange(rivals.shape[2], device=index.device) < index[:, :, None])
            rank = rank + ahead.sum(dim=2)
            if level >= j:
                ranks[:, level, j] = torch.where(index >= 0, rank, MISSING)
    return ranks
