"""Block divergence of drafts: how much of the target's law their most probable branch covers, level by level.

Axes: B rows, T tree nodes, L levels, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.tree.grow import Tree


def first_branch(tree: Tree, levels: int) -> tuple[Tensor, Tensor]:
    """Nodes down the most probable branch, [B, L], and which nodes are children of each, [B, L, T].

    Where the branch has ended its last node is repeated, with no children.
    """
    batch, count = tree.tokens.shape
    index = torch.arange(count, device=tree.tokens.device)
    child = (tree.parents[:, None] == index[:, None]) & (tree.parents != index)[:, None]  # [B, parent, child]
    child[:, :, 0] = False
    each, at = torch.arange(batch, device=index.device), torch.zeros(batch, dtype=torch.long, device=index.device)
    nodes, children = [], []
    for _ in range(levels):
        below = child[each, at]
        nodes.append(at)
        children.append(below)
        at = torch.where(below.any(dim=1), below.long().argmax(dim=1), at)
    return torch.stack(nodes, dim=1), torch.stack(children, dim=1)


def block_divergences(tree: Tree, logits: Tensor, levels: int) -> list[float]:
    """The target's mass on the children, mean over `levels` levels of the branch, [B].  logits: [B, T, V].

    At temperature 1, so that greedy rows too give a smooth signal.
    """
    nodes, children = first_branch(tree, levels)
    each, total = torch.arange(len(nodes), device=logits.device), torch.zeros(len(nodes), device=logits.device)
    for level in range(levels):
        probs = logits[each, nodes[:, level]].float().softmax(dim=-1)
        total += (probs.gather(1, tree.tokens) * children[:, level]).sum(dim=1)
    return [value / levels for value in total.tolist()]
