"""Policies that decide while a tree is drafted: after every level whether another follows, then how many are verified.

Axes: B rows, S candidates of a level, P candidates of all levels, V sizes.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.observation import Observation, level_size, of_level, pool_size
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.tree.grow import TreeShape


class GrowingPolicy(Scheduler):
    """Asks for the largest tree of its grid, and ends it where it no longer pays."""

    reads_children = False
    grows = True

    def __init__(self, spec: PolicySpec) -> None:
        self.spec, self.name, self.grid = spec, spec.method, ActionGrid.of(spec.grid)
        self.depth, self.every = max(self.grid.depths), 1
        self.sizes = [count for count in self.grid.num_tokens if count > 1]
        if not self.sizes:
            raise ValueError(f"a policy that drafts verifies 2 nodes or more, its grid has {self.grid.summary}")
        self.shape = TreeShape(self.sizes[-1], self.depth, spec.top_k)

    def choose(self, seen: Observation) -> list[TreeShape]:
        """The largest tree, which `growth` cuts."""
        return [self.shape] * seen.rows

    def replayed_shapes(self) -> list[TreeShape]:
        """The largest tree."""
        return [self.shape]

    def growth(self, lengths: Tensor) -> Decisions:
        """Decisions for rows with roots at these positions."""
        return Decisions(self, lengths)

    @abstractmethod
    def go_on(self, level: int, scores: Tensor, lengths: Tensor) -> Tensor:
        """Whether rows with roots at `lengths` [B] draft a level more, [B] bool; scores: [B, S], see `Growth`."""

    @abstractmethod
    def nodes(self, depths: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Nodes to verify of trees with so many levels [B] and roots at `lengths` [B]; scores: [B, P], see `Growth`."""


class Decisions:
    """Those of a `GrowingPolicy` for the rows of one draft, see `Growth`; made on the CPU, which waits for them."""

    def __init__(self, policy: GrowingPolicy, lengths: Tensor) -> None:
        self.policy, self.lengths = policy, lengths.cpu()

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`."""
        return self.policy.go_on(level, scores.cpu(), self.lengths).to(scores.device)

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        return self.policy.nodes(depths.cpu(), scores.cpu(), self.lengths).to(scores.device)


class LTDPolicy(GrowingPolicy):
    """Learning to Draft: one network for depth, one for size; one that is missing goes as far as the grid allows."""

    def __init__(self, spec: PolicySpec, depth_net: ActorCritic | None, size_net: ActorCritic | None) -> None:
        super().__init__(spec)
        self.depth_net, self.size_net = depth_net, size_net

    def go_on(self, level: int, scores: Tensor, lengths: Tensor) -> Tensor:
        """See `GrowingPolicy`."""
        if self.depth_net is None:
            return torch.ones(len(scores), dtype=torch.bool, device=scores.device)
        seen = of_level(scores, level_size(self.spec.top_k), lengths, level)
        return self.depth_net.logits(seen).argmax(dim=1) == 1

    def nodes(self, depths: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """See `GrowingPolicy`.

        As in training, a size that a pool cannot fill is not chosen; one that is smaller than all sizes is taken whole.
        """
        top_k, sizes = self.spec.top_k, torch.tensor(self.sizes, device=scores.device)
        pool = depths * level_size(top_k) - level_size(top_k) + top_k + 1
        fits = sizes <= pool[:, None]
        fits[:, 0] = True
        if self.size_net is None:
            place = fits.sum(dim=1) - 1
        else:
            seen = of_level(scores, pool_size(top_k, self.depth), lengths, depths)
            place = self.size_net.logits(seen, fits).argmax(dim=1)
        return torch.minimum(sizes[place], pool)
