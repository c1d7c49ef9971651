"""The target's probabilities along drafted branches at every position of a text, for coverage and overlap.

The target reads each distinct node of the drafters' most probable branches once.
Axes: B roots, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.kernels.attention import additive
from drafterforge.targets.load import Target
from drafterforge.tree.coverage import first_branch, overlap
from drafterforge.tree.grow import Tree

NODES = 256  # nodes that the target reads at once
Node = tuple[int, tuple[int, ...]]  # position of the first token that differs from the text, and the tokens from there


class BranchQuery(NamedTuple):
    """A request for the target's probabilities of a node's children."""

    drafter: str
    root: int
    level: int  # of the node; the root's is 0
    children: list[int]
    proposed: tuple[Tensor, Tensor] | None  # target ids and the drafter's probabilities of the children; None: unknown


class BranchQueries:
    """Collects queries about a text, then answers all of them."""

    def __init__(self, text: Tensor) -> None:
        self.text = text.tolist()
        self.queries: dict[Node, list[BranchQuery]] = defaultdict(list)
        self.num_probs = 0  # of drafters that the queries hold

    def add(
        self,
        drafter: str,
        root: int,
        branch: Sequence[int],
        children: Sequence[int],
        proposed: tuple[Tensor, Tensor] | None,
    ) -> None:
        """Add a query about children of the last node of a branch below a root."""
        common, following = 0, self.text[root + 1 : root + 1 + len(branch)]
        while common < len(following) and following[common] == branch[common]:
            common += 1
        node = root + 1 + common, tuple(branch[common:])
        self.queries[node].append(BranchQuery(drafter, root, len(branch), list(children), proposed))
        self.num_probs += 0 if proposed is None else len(proposed[1])

    def add_trees(self, drafter: str, roots: Sequence[int], trees: Tree, depth: int) -> None:
        """Add queries about the most probable branches of trees of `depth` levels below roots [B]."""
        nodes, children = first_branch(trees, depth)
        tokens = trees.tokens.tolist()
        for row, (root, walk, below) in enumerate(zip(roots, nodes.tolist(), children.cpu(), strict=True)):
            proposals = trees.proposals[row] if trees.proposals else None
            proposed = [] if proposals is None else proposals.branch()
            branch: list[int] = []
            for level, node in enumerate(walk):
                indices = below[level].nonzero()[:, 0].tolist()
                if not indices:
                    break
                branch += [tokens[row][node]] if level else []
                tokens_below = [tokens[row][index] for index in indices]
                self.add(drafter, root, branch, tokens_below, proposed[level] if level < len(proposed) else None)

    def answers(self, target: Target) -> Iterator[tuple[BranchQuery, Tensor, float]]:
        """Each query with the target's probabilities of its children and the overlap; removes the queries."""
        self.num_probs = 0
        cache, device = target.new_cache(1), target.device
        end = len(self.text)
        cache.set_slots(0, end)
        text = torch.tensor([self.text], device=device)
        states = target.forward(text, torch.arange(end, device=device)[None], cache)[0][0]
        text_nodes = [node for node in self.queries if not node[1]]
        for start in range(0, len(text_nodes), NODES):
            part = text_nodes[start : start + NODES]
            rows = torch.tensor([position - 1 for position, _ in part], device=device)
            yield from self._answers(part, target.logits(states[None, rows])[0])
        for part in self._parts():
            slot = {node: end + row for row, node in enumerate(part)}
            reads = torch.zeros(len(part), end + len(part), dtype=torch.bool)
            for row, (position, branch) in enumerate(part):
                reads[row, :position] = True
                for length in range(1, len(branch) + 1):
                    reads[row, slot[position, branch[:length]]] = True
            cache.set_slots(end, len(part))
            tokens = torch.tensor([[branch[-1] for _, branch in part]], device=device)
            positions = torch.tensor([[position + len(branch) - 1 for position, branch in part]], device=device)
            mask = additive(reads.to(device)[None], target.compute_dtype)
            yield from self._answers(part, target.logits(target.forward(tokens, positions, cache, mask)[0])[0])

    def _parts(self) -> list[list[Node]]:
        """Nodes that differ from the text, in batches of complete branches, parents first."""
        parts: list[dict[Node, None]] = [{}]
        for position, branch in sorted(node for node in self.queries if node[1]):
            if len(parts[-1]) + len(branch) > NODES and parts[-1]:
                parts.append({})
            parts[-1] |= {(position, branch[:length]): None for length in range(1, len(branch) + 1)}
        return [list(part) for part in parts if part]

    def _answers(self, part: list[Node], logits: Tensor) -> Iterator[tuple[BranchQuery, Tensor, float]]:
        """Queries about these nodes with the probabilities; logits: [n, V]."""
        probs = logits.float().softmax(dim=-1).cpu()
        for row, node in enumerate(part):
            for query in self.queries.pop(node, ()):  # a parent may be in several batches
                shared = 0.0 if query.proposed is None else overlap(probs[row], *query.proposed)
                yield query, probs[row, query.children], shared
