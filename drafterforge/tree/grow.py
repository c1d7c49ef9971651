"""The candidate pool of a cycle and the tree cut from it (EAGLE-2's dynamic tree).

Scores are cumulative log-probabilities in fp32.  Every choice follows one total order: score descending, level
ascending, then index ascending.  As log-probabilities are <= 0, a parent precedes its children even under ties, so the
best n candidates always include the ancestors of each.
Axes: B rows (sequences), P pool candidates (level order), T tree nodes (root first), W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.kernels.dispatch import kernels_of, tree_kernels
from drafterforge.kernels.trees import cut


@dataclass(frozen=True)
class TreeShape:
    """What a scheduler chooses: nodes verified (root included), drafted levels, beam width."""

    num_tokens: int
    depth: int
    top_k: int

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.num_tokens < 1 or self.depth < 0 or self.top_k < 1:
            raise ConfigError(f"a tree needs num_tokens >= 1, depth >= 0 and top_k >= 1, got {self}")

    @property
    def pool_size(self) -> int:
        """Candidates that drafting yields: k + (d - 1) k^2."""
        return 0 if self.depth == 0 else self.top_k + (self.depth - 1) * self.top_k**2

    @property
    def drafted(self) -> TreeShape:
        """The shape that yields the same tree without candidates too wide or too deep to be among its nodes."""
        most = self.num_tokens - 1
        return TreeShape(self.num_tokens, min(self.depth, most), max(min(self.top_k, most), 1))


class Proposals(Protocol):
    """What a drafter proposes along the most probable branch of a row's tree."""

    def branch(self) -> list[tuple[Tensor, Tensor]]:
        """Target ids and the drafter's probabilities of the children of each node, [n] each; the root's first."""


@dataclass(frozen=True)
class Tree:
    """Nodes to verify, in level order, parents before children.  A node that pads a row is its own parent."""

    tokens: Tensor  # [B, T] target ids; the root first
    parents: Tensor  # [B, T] index of the parent; the root's is itself
    levels: Tensor  # [B, T] 0 for the root and for padding
    expected: Sequence[float] | None = None  # tokens that each row is expected to accept beyond its root, if known
    proposals: Sequence[Proposals | None] | None = None  # of each row, if asked for


def top_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and draft ids of the `count` best children, each [..., count], of logits [..., W].

    Equal logits are ordered by id, also across the cut.
    """
    logits = logits.float()
    return kernels_of(logits).top_children(logits, min(count, logits.shape[-1]))


def cut_tree(
    root: Tensor,
    tokens: Tensor,
    scores: Tensor,
    parents: Tensor,
    levels: Tensor,
    num_tokens: int,
    counts: Tensor | None = None,
) -> Tree:
    """The root and the best num_tokens - 1 candidates of each row's pool, see `kernels.trees.cut`."""
    return Tree(*cut(root, tokens, scores, parents, levels, num_tokens, counts))


def root_only(root: Tensor) -> Tree:
    """Trees of the roots [B] alone."""
    zero = torch.zeros(root.numel(), 1, dtype=torch.long, device=root.device)
    return Tree(root[:, None], zero, zero, [0.0] * root.numel())


def ancestor_mask(parents: Tensor, depth: int) -> Tensor:
    """Whether node j is node i or an ancestor of it, [B, T, T]; `depth` is at least the deepest level."""
    return tree_kernels(parents).ancestors(parents, depth)
