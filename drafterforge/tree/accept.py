"""Which drafted nodes the target confirms."""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.tree.grow import Tree


def accepted_path(tree: Tree, chosen: Tensor, ancestors: Tensor) -> Tensor:
    """Nodes of the accepted walk from the root, [A + 1], in order.

    chosen: the target's token after each node, [T].  ancestors: [T, T] from `ancestor_mask`.  A node is confirmed when
    it is the token chosen after its parent and its ancestors are confirmed; siblings differ, so at most one walk
    exists.
    """
    matches = tree.tokens == chosen[tree.parents]
    matches[0] = True
    confirmed = (matches[None, :] | ~ancestors).all(dim=1)
    deepest = torch.where(confirmed, tree.levels, -1).argmax()
    return ancestors[deepest].nonzero()[:, 0]
