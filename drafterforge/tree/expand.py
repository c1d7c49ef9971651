"""Level-by-level drafting: EAGLE-2's beam over any model that can score children of beam nodes.

Axes: B rows, K beam nodes, k children of each, L level slots written so far, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from drafterforge.kernels import native
from drafterforge.tree.grow import Tree, TreeShape, cut_tree, ordered, root_only, top_children
from drafterforge.tree.merge import Others, merged_tree

# step(level, tokens [B, K], origin [B, K], reads [B, K, L]) -> logits [B, K, W]
Step = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Growth(Protocol):
    """Decisions on trees that are being drafted."""

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """Whether each row drafts a level more, [B] bool.  scores: [B, n] of the candidates of `level`, the newest."""

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """Nodes to verify of each row, root included, [B].

        depths: levels drafted, [B].  scores: [B, P] of all candidates, level by level, -inf beyond a row's depth.
        """


def expand(
    root: Tensor,
    logits: Tensor,
    shape: TreeShape,
    step: Step,
    token_ids: Tensor | None = None,
    growth: Growth | None = None,
    others: Others | None = None,
) -> Tree:
    """Draft a tree below each root [B] from the logits [B, W] of its children.

    step: reads the beam of a level and scores its children.  `origin` is each node's parent in the beam before;
    `reads` tells which level slots a node may read (its drafted ancestors and itself, the newest K slots being the
    beam's own).  token_ids: target id of each draft id, [W]; None: the same.  growth: may end rows before the shape's
    depth, and says how many nodes are kept.  others: candidates of another drafter, of which the tree takes
    the best too; scores then say how many nodes are kept, not the growth.
    """
    if shape.depth == 0 or shape.num_tokens <= 1:
        return root_only(root)
    if growth is None and others is None:  # no more of a level, and no more levels, can be among the best
        most = shape.num_tokens - 1
        shape = TreeShape(shape.num_tokens, min(shape.depth, most), min(shape.top_k, most))
    logits = logits.float()
    if native.takes(logits):
        return _compiled(root, logits, shape, step, token_ids, growth, others)
    batch, device = root.numel(), root.device
    scores, ids = top_children(logits, shape.top_k)
    tokens = ids if token_ids is None else token_ids[ids]
    count = tokens.shape[1]
    pool = torch.arange(count, device=device).expand(batch, -1)  # pool index of each beam node
    pools = [(tokens, scores, torch.full_like(pool, -1))]
    levels, size = [torch.ones(count, dtype=torch.long, device=device)], count
    reads = torch.empty(batch, count, 0, dtype=torch.bool, device=device)
    origin = torch.zeros_like(pool)
    depths = torch.ones(batch, dtype=torch.long, device=device)
    growing = torch.ones(batch, dtype=torch.bool, device=device)
    for level in range(1, shape.depth):
        if growth is not None:
            growing = growing & growth.go_on(level, pools[-1][1])
            if not bool(growing.any()):
                break
        depths = depths + growing
        own = torch.eye(count, dtype=torch.bool, device=device).expand(batch, -1, -1)
        reads = torch.cat((reads.gather(1, origin[:, :, None].expand(-1, -1, reads.shape[2])), own), dim=2)
        logp, ids = top_children(step(level, tokens, origin, reads), shape.top_k)
        cumulative = (scores[:, :, None] + logp).flatten(1)
        if growth is not None:
            cumulative = cumulative.masked_fill(~growing[:, None], -torch.inf)
        ids = ids.flatten(1)
        children = ids if token_ids is None else token_ids[ids]
        width = logp.shape[2]
        pools.append((children, cumulative, pool.repeat_interleave(width, dim=1)))
        levels.append(torch.full((cumulative.shape[1],), level + 1, device=device))
        beam = ordered(cumulative)[:, : shape.top_k]
        tokens, scores, origin = children.gather(1, beam), cumulative.gather(1, beam), beam // width
        count, pool = beam.shape[1], size + beam
        size += cumulative.shape[1]
    drafted, cumulative, parents = (torch.cat(parts, dim=1) for parts in zip(*pools, strict=True))
    if others is not None:
        return merged_tree(root, drafted, cumulative, parents, torch.cat(levels), shape.num_tokens, others)
    if growth is None:
        return cut_tree(root, drafted, cumulative, parents, torch.cat(levels), shape.num_tokens)
    counts = growth.nodes(depths, cumulative)
    return cut_tree(root, drafted, cumulative, parents, torch.cat(levels), int(counts.max()), counts)


def _compiled(
    root: Tensor,
    logits: Tensor,
    shape: TreeShape,
    step: Step,
    token_ids: Tensor | None,
    growth: Growth | None,
    others: Others | None,
) -> Tree:
    """`expand` on a CPU, where what lies between two steps is two calls of native.c; a test holds it to the other."""
    batch, top_k = root.numel(), min(shape.top_k, logits.shape[-1])
    pool = native.CandidatePool(batch, shape.pool_size, token_ids)
    tokens, origin, newest = pool.level(logits[:, None].contiguous(), top_k, top_k)
    reads = torch.empty(batch, 1, 0, dtype=torch.bool)
    depths, growing = [1] * batch, torch.ones(batch, dtype=torch.bool)
    for level in range(1, shape.depth):
        if growth is not None:
            going = growth.go_on(level, newest)
            growing = going if level == 1 else growing & going
            on = growing.tolist()
            if not any(on):
                break
            depths = [depth + one for depth, one in zip(depths, on, strict=True)]
        reads = native.reads(reads, origin)
        found = step(level, tokens, origin, reads).float().contiguous()
        partly = growing if growth is not None and not all(on) else None
        tokens, origin, newest = pool.level(found, top_k, shape.top_k, partly)
    if others is not None:
        drafted = (part[:, : pool.size] for part in (pool.tokens, pool.scores, pool.parents))
        return merged_tree(root, *drafted, pool.levels, shape.num_tokens, others)
    if growth is None:
        nodes = min(shape.num_tokens, pool.size + 1)
        return Tree(*pool.cut(root.contiguous(), torch.full((batch,), nodes), nodes, finite=False))
    counts = growth.nodes(torch.tensor(depths), pool.scores[:, : pool.size])
    nodes = max(1, min(int(counts.max()), pool.size + 1))
    return Tree(*pool.cut(root.contiguous(), counts, nodes, finite=True))
