"""The candidate pool of a cycle and the tree cut from it (EAGLE-2's dynamic tree).

Scores are cumulative log-probabilities in fp32.  Every choice follows one total order: score descending, level
ascending, then index ascending; with log-probabilities <= 0 a parent then always precedes its children, also under
ties, so that the best n candidates are closed under ancestors.
Axes: K beam nodes, k children of each, P pool candidates (level order), T tree nodes (root first).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TreeShape:
    """What a scheduler chooses: nodes verified (root included), drafted levels, beam width."""

    num_tokens: int
    depth: int
    top_k: int

    @property
    def pool_size(self) -> int:
        """Candidates that drafting yields: k + (d - 1) k^2."""
        return 0 if self.depth == 0 else self.top_k + (self.depth - 1) * self.top_k**2


@dataclass(frozen=True)
class Tree:
    """Nodes to verify, in level order; parents precede children."""

    tokens: Tensor  # [T] target ids; the root first
    parents: Tensor  # [T] index of the parent; the root's is itself
    levels: Tensor  # [T] 0 for the root


def ordered(scores: Tensor) -> Tensor:
    """Indices that sort [..., P] by score descending; equal scores keep their order."""
    return scores.sort(dim=-1, descending=True, stable=True).indices


def top_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and draft ids of the `count` best children, each [K, count], of logits [K, W].

    Equal logits are ordered by id, also across the cut.
    """
    width = logits.shape[-1]
    count = min(count, width)
    logits = logits.float()
    values, ids = logits.topk(min(count + 1, width), dim=-1)
    best = values[:, :1]
    lse = (logits - best).exp_().sum(dim=-1, keepdim=True).log_() + best  # logsumexp, which takes longer
    if count < width and bool((values[:, count - 1] == values[:, count]).any()):
        ids = ordered(logits)[:, :count]
    else:
        ids = ids[:, :count].sort(dim=-1).values
        ids = ids.gather(-1, ordered(logits.gather(-1, ids)))
    # a probability of one rounds to a log of +1e-7 at times, which would lift a child above its parent
    return (logits.gather(-1, ids) - lse).clamp_(max=0.0), ids


def cut_tree(root: Tensor, tokens: Tensor, scores: Tensor, parents: Tensor, levels: Tensor, num_tokens: int) -> Tree:
    """The root and the best num_tokens - 1 candidates of a pool.

    root: [] target id.  tokens, scores, levels: [P].  parents: [P], pool index of the parent, -1 for the root's
    children.
    """
    keep = ordered(scores)[: max(num_tokens - 1, 0)].sort().values
    place = torch.zeros(tokens.numel() + 1, dtype=torch.long, device=tokens.device)
    place[keep + 1] = torch.arange(1, keep.numel() + 1, device=tokens.device)
    zero = torch.zeros(1, dtype=torch.long, device=tokens.device)
    return Tree(
        tokens=torch.cat((root.view(1), tokens[keep])),
        parents=torch.cat((zero, place[parents[keep] + 1])),
        levels=torch.cat((zero, levels[keep])),
    )


def root_only(root: Tensor) -> Tree:
    """A tree that drafts nothing."""
    zero = torch.zeros(1, dtype=torch.long, device=root.device)
    return Tree(root.view(1), zero, zero)


def ancestor_mask(parents: Tensor, depth: int) -> Tensor:
    """Whether node j is node i or an ancestor of it, [T, T]; `depth` is at least the deepest level."""
    mask = torch.eye(parents.numel(), dtype=torch.bool, device=parents.device)
    ancestor = parents
    for _ in range(depth):
        mask.scatter_(1, ancestor[:, None], True)
        ancestor = parents[ancestor]
    return mask
