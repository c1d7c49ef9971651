"""Policies that decide while a tree is drafted: after every level on another one, then on the number of nodes.

Axes: B rows, S candidates of a level, P candidates of all levels, V sizes.
"""

from __future__ import annotations

import copy
from abc import abstractmethod

import torch
from torch import Tensor

from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.observation import Observation, level_observation, level_size, pool_size
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.tree.grow import TreeShape


class GrowingPolicy(Scheduler):
    """Starts from the largest tree of its grid, and ends it where it no longer pays."""

    reads_children = False
    grows = True

    def __init__(self, spec: PolicySpec) -> None:
        self.spec, self.name, self.grid = spec, spec.method, ActionGrid.of(spec.grid)
        self.depth, self.hold_cycles = max(self.grid.depths), 1
        self.sizes = [count for count in self.grid.num_tokens if count > 1]
        if not self.sizes:
            raise ValueError(f"the grid needs a size of 2 nodes or more, but has {self.grid.summary}")
        self.shape = TreeShape(self.sizes[-1], self.depth, spec.top_k)
        self.count = torch.tensor(self.sizes)

    def choose(self, observation: Observation) -> list[TreeShape]:
        """The largest tree, which `growth` cuts."""
        return [self.shape] * observation.rows

    def largest_shapes(self) -> list[TreeShape]:
        """The largest tree."""
        return [self.shape]

    def growth(self, lengths: Tensor) -> Decisions:
        """Decisions for rows with roots at positions `lengths` [B]."""
        return Decisions(self, lengths)

    def on(self, device: torch.device) -> GrowingPolicy:
        """A copy whose numbers lie on a device, which decides there."""
        twin = copy.copy(self)
        twin.count = self.count.to(device)
        return twin

    @abstractmethod
    def go_on(self, level: int, scores: Tensor, lengths: Tensor) -> Tensor:
        """Whether rows with roots at `lengths` [B] draft another level, [B] bool; scores: [B, S], see `Growth`."""

    @abstractmethod
    def nodes(self, depths: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Nodes to verify, [B], of trees with `depths` [B] levels and roots at `lengths` [B]; scores: [B, P]."""


class Decisions:
    """The `Growth` of a `GrowingPolicy` for the rows of one draft; decided on the CPU, which waits for the scores."""

    def __init__(self, policy: GrowingPolicy, lengths: Tensor) -> None:
        self.policy, self.lengths = policy, lengths.cpu()

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`."""
        return self.policy.go_on(level, scores.cpu(), self.lengths).to(scores.device)

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        return self.policy.nodes(depths.cpu(), scores.cpu(), self.lengths).to(scores.device)


class DeviceDecisions:
    """The decisions of a `GrowingPolicy`, made where its numbers and the scores are, so that nobody waits."""

    def __init__(self, policy: GrowingPolicy, lengths: Tensor) -> None:
        """lengths: positions of the roots, [B]."""
        self.policy, self.lengths = policy, lengths

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `LevelDecisions`."""
        return self.policy.go_on(level, scores, self.lengths)

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `LevelDecisions`."""
        return self.policy.nodes(depths, scores, self.lengths)


class LTDPolicy(GrowingPolicy):
    """Learning to Draft: one network for depth, one for size; without one, the grid's largest value is taken."""

    def __init__(self, spec: PolicySpec, depth_net: ActorCritic | None, size_net: ActorCritic | None) -> None:
        super().__init__(spec)
        self.depth_net, self.size_net = depth_net, size_net

    def on(self, device: torch.device) -> LTDPolicy:
        """See `GrowingPolicy`."""
        twin = super().on(device)
        twin.depth_net, twin.size_net = (
            None if net is None else net.on(device) for net in (self.depth_net, self.size_net)
        )
        return twin

    def go_on(self, level: int, scores: Tensor, lengths: Tensor) -> Tensor:
        """See `GrowingPolicy`."""
        if self.depth_net is None:
            return torch.ones(len(scores), dtype=torch.bool, device=scores.device)
        observation = level_observation(scores, level_size(self.spec.top_k), lengths, level)
        return self.depth_net.logits(observation).argmax(dim=1) == 1

    def nodes(self, depths: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """See `GrowingPolicy`.

        As in training, a size above the number of candidates is not chosen; if all are, every candidate is verified.
        """
        top_k, sizes = self.spec.top_k, self.count
        pool = depths * level_size(top_k) - level_size(top_k) + top_k + 1
        fits = sizes <= pool[:, None]
        fits[:, 0] = True
        if self.size_net is None:
            choice = fits.sum(dim=1) - 1
        else:
            observation = level_observation(scores, pool_size(top_k, self.depth), lengths, depths)
            choice = self.size_net.logits(observation, fits).argmax(dim=1)
        return torch.minimum(sizes[choice], pool)
