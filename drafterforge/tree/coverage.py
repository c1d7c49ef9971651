"""Coverage: the target's probability mass on the children along a tree's most probable branch.

It is the probability that sample-and-match accepts, averaged over levels; see `selectors.metasd`.

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
    """The target's mean probability mass on the children over `levels` levels of the branch, [B].  logits: [B, T, V].

    At temperature 1, so greedy rows give a smooth signal, too.
    """
    nodes, children = first_branch(tree, levels)
    rows, total = torch.arange(len(nodes), device=logits.device), torch.zeros(len(nodes), device=logits.device)
    for level in range(levels):
        probs = logits[rows, nodes[:, level]].float().softmax(dim=-1)
        total += (probs.gather(1, tree.tokens) * children[:, level]).sum(dim=1)
    return total / levels
