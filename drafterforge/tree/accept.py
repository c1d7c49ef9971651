"""Which drafted nodes the target confirms.

Axes: B rows, T tree nodes, D drafted levels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from drafterforge.kernels.dispatch import tree_kernels
from drafterforge.tree.grow import Tree


def accepted_path(tree: Tree, next_tokens: Tensor, ancestors: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Nodes of each row's accepted walk from the root, [B, D + 1], of which the first counts [B] are valid.

    next_tokens: the target's token after each node, [B, T].  ancestors: [B, T, T] from `ancestor_mask`.  A node is
    confirmed when it is the target's token after its parent and its parent is confirmed; siblings differ, so at most
    one walk exists.
    """
    return tree_kernels(next_tokens).walk(tree.tokens, tree.parents, tree.levels, next_tokens, ancestors, depth)


def sampled_path(
    tree: Tree, logits: Tensor, depth: int, pick: Callable[[int, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Walks as in `accepted_path`, and the target's token after each node of the walk, [B, D + 1].

    logits: [B, T, V].  pick(level, logits [B, V] of the walk's node, walking [B]) chooses the token after it, [B];
    for rows whose walk has ended its result is ignored.  `pick` sees only nodes on a walk.
    """
    batch, count = tree.tokens.shape
    rows, index = torch.arange(batch, device=logits.device), torch.arange(count, device=logits.device)
    node = torch.zeros(batch, dtype=torch.long, device=logits.device)
    walking = torch.ones(batch, dtype=torch.bool, device=logits.device)
    path, tokens, length = [], [], torch.zeros_like(node)
    for level in range(depth + 1):
        token = pick(level, logits[rows, node], walking)
        path.append(node)
        tokens.append(token)
        length = length + walking
        child = (tree.parents == node[:, None]) & (tree.tokens == token[:, None]) & (index > node[:, None])
        child &= tree.parents != index
        walking = walking & child.any(dim=1)
        node = torch.where(walking, child.long().argmax(dim=1), node)
        if logits.device.type == "cpu" and not bool(walking.any()):
            break
    missing = depth + 1 - len(path)
    path += [torch.zeros_like(node)] * missing
    tokens += [torch.zeros_like(node)] * missing
    return torch.stack(path, dim=1), length, torch.stack(tokens, dim=1)
