"""The target's law along drafted branches at every position of a text: block divergences as live cycles measure them.

The target is asked once for each different node that any drafter's most probable branch puts behind the text; what
follows the text itself is known from one pass over it.
Axes: N drafters, T tokens of the text, B roots, L levels, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from drafterforge.kernels.attention import additive
from drafterforge.targets.load import Target
from drafterforge.tree.divergence import first_branch
from drafterforge.tree.grow import Tree

NODES = 256  # that the target reads at once
Node = tuple[int, tuple[int, ...]]  # position of the first token that is not the text's, and the tokens from there on
Asked = tuple[int, int, int, list[int]]  # drafter, root, level of the node, children whose mass is asked for


class Branches:
    """Collects drafts, then asks the target about them."""

    def __init__(self, text: Tensor, levels: int) -> None:
        """levels: of the deepest drafter, over which every drafter's mean is taken; the root's is 0."""
        self.text, self.levels = text.tolist(), levels
        self.asked: dict[Node, list[Asked]] = defaultdict(list)

    def note(self, drafter: int, roots: list[int], tree: Tree) -> None:
        """Trees of a drafter below roots [B]."""
        nodes, children = first_branch(tree, self.levels)
        tokens = tree.tokens.tolist()
        for row, (root, walk, below) in enumerate(zip(roots, nodes.tolist(), children.cpu(), strict=True)):
            branch: list[int] = []
            for level, node in enumerate(walk):
                found = [tokens[row][place] for place in below[level].nonzero()[:, 0].tolist()]
                if not found:
                    break
                branch += [tokens[row][node]] if level else []
                self.ask(drafter, root, branch, found)

    def ask(self, drafter: int, root: int, branch: Sequence[int], children: Sequence[int]) -> None:
        """The mass of children of the node that a branch leads to from a root."""
        self.asked[self._node(root, branch)].append((drafter, root, len(branch), list(children)))

    def _node(self, root: int, branch: Sequence[int]) -> Node:
        """The branch without what the text says too."""
        same = 0
        following = self.text[root + 1 : root + 1 + len(branch)]
        while same < len(following) and following[same] == branch[same]:
            same += 1
        return root + 1 + same, tuple(branch[same:])

    def divergences(self, target: Target, num_drafters: int) -> np.ndarray:
        """Of every drafter's draft below every root, [N, T]; 0 where nothing was drafted."""
        total = np.zeros((num_drafters, len(self.text)))
        for (drafter, root, *_), masses in self.masses(target):
            total[drafter, root] += masses.sum().item()
        return total / self.levels

    def masses(self, target: Target) -> Iterator[tuple[Asked, Tensor]]:
        """All that was asked, and the target's probability of each of the children."""
        cache, device = target.new_cache(1), target.device
        end = len(self.text)
        cache.place(0, end)
        text = torch.tensor([self.text], device=device)
        states = target.forward(text, torch.arange(end, device=device)[None], cache)[0][0]
        known = [node for node in self.asked if not node[1]]
        for start in range(0, len(known), NODES):
            part = known[start : start + NODES]
            rows = torch.tensor([position - 1 for position, _ in part], device=device)
            yield from self._told(part, target.logits(states[None, rows])[0])
        for part in self._parts():
            place = {node: row for row, node in enumerate(part)}
            reads = torch.zeros(len(part), end + len(part), dtype=torch.bool)
            for row, (position, branch) in enumerate(part):
                reads[row, :position] = True
                for length in range(1, len(branch) + 1):
                    reads[row, end + place[position, branch[:length]]] = True
            cache.place(end, len(part))
            tokens = torch.tensor([[branch[-1] for _, branch in part]], device=device)
            positions = torch.tensor([[position + len(branch) - 1 for position, branch in part]], device=device)
            mask = additive(reads.to(device)[None], target.compute_dtype)
            yield from self._told(part, target.logits(target.forward(tokens, positions, cache, mask)[0])[0])

    def _parts(self) -> list[list[Node]]:
        """Nodes that differ from the text, whole branches together, parents first."""
        parts: list[dict[Node, None]] = [{}]
        for position, branch in sorted(node for node in self.asked if node[1]):
            if len(parts[-1]) + len(branch) > NODES and parts[-1]:
                parts.append({})
            parts[-1] |= {(position, branch[:length]): None for length in range(1, len(branch) + 1)}
        return [list(part) for part in parts if part]

    def _told(self, part: list[Node], logits: Tensor) -> Iterator[tuple[Asked, Tensor]]:
        """What is asked about each node, with its masses; logits: [n, V]."""
        probs = logits.float().softmax(dim=-1).cpu()
        for row, node in enumerate(part):
            for asked in self.asked.pop(node, ()):  # a parent may stand in several parts
                yield asked, probs[row, asked[3]]
