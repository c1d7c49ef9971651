"""Schedulers of every kind with random networks, for a tiny target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import Scheduler, StaticScheduler
from drafterforge.schedulers.growing import LTDPolicy
from drafterforge.schedulers.marginal import MarginalPolicy
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.observation import CHILDREN, level_size, observation_size, pool_size
from drafterforge.schedulers.policy import ShapePolicy
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

GRID = ActionGrid("tiny", (2, 5, 10), (1, 2, 3), (2, 3))
GROWING = {top_k: ActionGrid("growing", (1, 3, 6, 10), (1, 2, 3), (top_k,)) for top_k in (2, 3)}


def net(size: int, actions: int) -> ActorCritic:
    """A random network, whose choices differ from one observation to the next."""
    torch.manual_seed(7)
    network = ActorCritic(size, actions, (16,), (4,))
    for parameter in network.actor.parameters():
        parameter.data += torch.randn_like(parameter)
    return network.frozen()


def shape_policy(target: Target, parts: Sequence[str], hold_cycles: int = 1) -> ShapePolicy:
    """A policy that chooses among the shapes of a grid by some parts of the observation."""
    size = observation_size(parts, target.config.hidden_size, len(target.backbone.taps), CHILDREN)
    spec = PolicySpec("shapes", "resps", "in-memory", "a", "", "cpu", GRID.as_dict(), list(parts), hold_cycles)
    return ShapePolicy(spec, net(size, len(GRID)))


def ltd_policy(top_k: int) -> LTDPolicy:
    """Learning to Draft with networks for depth and size."""
    spec = PolicySpec("ltd", "ltd", "in-memory", "a", "", "cpu", GROWING[top_k].as_dict(), top_k=top_k)
    return LTDPolicy(spec, net(level_size(top_k) + 2, 2), net(pool_size(top_k, 3) + 2, 3))


def marginal_policy(target: Target) -> MarginalPolicy:
    """A marginal policy whose prices some nodes are worth."""
    numbers = {"reach": 0.2, "rate": 1.0}
    spec = PolicySpec(
        "marginal", "marginal", "in-memory", "a", "", "cpu", GROWING[3].as_dict(), top_k=3, numbers=numbers
    )
    return MarginalPolicy(spec, torch.tensor([0.05, 0.3, 0.5]))


POLICIES: dict[str, Callable[[Target], Scheduler]] = {
    "static": lambda target: StaticScheduler(TreeShape(7, 3, 2)),
    "children": lambda target: shape_policy(target, ["children", "length"]),
    "features, kept": lambda target: shape_policy(target, ["features"], hold_cycles=3),
    "text": lambda target: shape_policy(target, ["text", "length"]),
    "ltd": lambda target: ltd_policy(3),
    "ltd, narrow": lambda target: ltd_policy(2),  # than the engine's trees
    "marginal": marginal_policy,
}
