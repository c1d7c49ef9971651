"""Coverage and overlap: what the target's distributions along a tree's most probable branch say of its drafter.

Coverage is the target's mass on the children: the probability that sample-and-match accepts.  Overlap is 1 - TV of
target p and drafter q: the probability that verification of a sampled chain accepts.  See `selectors.metasd`.  Both are
at temperature 1, so greedy rows give a smooth signal, too.

Axes: B rows, T tree nodes, L levels, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.tree.grow import Tree


def first_branch(tree: Tree, levels: int) -> tuple[Tensor, Tensor]:
    """Nodes of the most probable branch, [B, L], and a mask of the children of each, [B, L, T].

    After the end of the branch its last node is repeated, without children.
    """
    batch, count = tree.tokens.shape
    index = torch.arange(count, device=tree.tokens.device)
    child = (tree.parents[:, None] == index[:, None]) & (tree.parents != index)[:, None]  # [B, parent, child]
    child[:, :, 0] = False
    rows, node = torch.arange(batch, device=index.device), torch.zeros(batch, dtype=torch.long, device=index.device)
    nodes, children = [], []
    for _ in range(levels):
        below = child[rows, node]
        nodes.append(node)
        children.append(below)
        node = torch.where(below.any(dim=1), below.long().argmax(dim=1), node)
    return torch.stack(nodes, dim=1), torch.stack(children, dim=1)


def branch_coverages(tree: Tree, logits: Tensor, levels: int) -> Tensor:
    """The target's mean mass on the children over `levels` levels of the branch, [B].  logits: [B, T, V]."""
    nodes, children = first_branch(tree, levels)
    rows, total = torch.arange(len(nodes), device=logits.device), torch.zeros(len(nodes), device=logits.device)
    for level in range(levels):
        probs = logits[rows, nodes[:, level]].float().softmax(dim=-1)
        total += (probs.gather(1, tree.tokens) * children[:, level]).sum(dim=1)
    return total / levels


def overlap(p: Tensor, token_ids: Tensor, q: Tensor) -> float:
    """1 - TV(p, q) = sum of min(p, q).  p: [V].  q: of the tokens `token_ids`, [n]; 0 elsewhere."""
    return float(torch.minimum(p[token_ids.to(p.device)], q.to(p)).sum())


def branch_overlaps(tree: Tree, logits: Tensor, levels: int) -> list[float]:
    """Mean overlap over the drafted levels of the branch, of each row; 0 if nothing is drafted or q is unknown.

    logits: [B, T, V].  levels: most that are drafted.
    """
    nodes, children = first_branch(tree, levels)
    num_drafted = children.any(dim=2).sum(dim=1).tolist()
    means = []
    for row, (proposals, count) in enumerate(zip(tree.proposals or [None] * len(nodes), num_drafted, strict=True)):
        branch = [] if proposals is None else proposals.branch()[:count]
        probs = logits[row, nodes[row, : len(branch)]].float().softmax(dim=-1)
        means.append(sum(overlap(p, *level) for p, level in zip(probs, branch, strict=True)) / max(count, 1))
    return means
