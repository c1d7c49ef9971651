"""Environments give the tokens and seconds of replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from drafterforge.errors import ConfigError
from drafterforge.replay.environment import DepthEnvironment, ShapeEnvironment, SizeEnvironment
from drafterforge.replay.scheduler_actions import (
    actions_by_size,
    depth_observations,
    grown_actions,
    levels_of,
    nodes_of,
    observations_of,
    size_observations,
    sizes_allowed,
)
from drafterforge.replay.table import build_table, play, play_static
from drafterforge.schedulers.actions import NO_DRAFT, ActionGrid
from drafterforge.schedulers.growing import LTDPolicy
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.training.policies import ltd_grid
from tests.replay.builders import GRID, profile, table, traces

LTD = ActionGrid("ltd", (1, 2, 4, 8), (1, 2, 3), (2,))


def undecided(observations: np.ndarray, actions: int) -> ActorCritic:
    """A random network that chooses different actions."""
    seen = torch.from_numpy(observations)
    net = ActorCritic(seen.shape[1], actions, (8,), (8,))
    net.normalise_by(seen)
    with torch.no_grad():
        net.actor[-1].bias -= net.logits(seen).mean(dim=0)
    return net


def ltd_policy(grid: ActionGrid, depth_net: ActorCritic | None, size_net: ActorCritic | None) -> LTDPolicy:
    """A policy of depth and size with these networks."""
    return LTDPolicy(PolicySpec("ltd", "ltd", "", "a", "", "cpu", grid.as_dict(), top_k=2), depth_net, size_net)


def test_a_grid_has_every_shape_its_pool_can_fill_and_no_drafting():
    paper = ActionGrid("paper", (32, 48, 64, 80, 96, 128), tuple(range(4, 10)), (8, 12, 16, 20, 32))
    assert len(paper) == 181 and paper.shapes[0] == NO_DRAFT
    assert all(shape.num_tokens <= shape.pool_size + 1 for shape in GRID.shapes)
    assert len(set(GRID.shapes)) == len(GRID.shapes)
    assert [GRID.index(shape) for shape in GRID.shapes] == list(range(len(GRID)))
    with pytest.raises(ConfigError, match=r"has nodes 1,2,4,8, levels 1,2,3, top_k 1,2: .* holds top_k \[1\]"):
        GRID.check((1,), 3, "the trace")


def test_re_sps_s_grid_has_the_papers_177_actions_and_always_drafts():
    """The paper's rule with its own depths: TT <= k^(d - 1)."""
    paper = ActionGrid("paper", (32, 48, 64, 80, 96, 128), tuple(range(4, 10)), (8, 12, 16, 20, 32), "resps")
    triples = [(count, d, k) for count in paper.num_tokens for d in range(3, 9) for k in paper.top_ks]
    assert paper.table.tolist() == [[count, d + 1, k] for count, d, k in triples if count <= k ** (d - 1)]
    assert len(paper) == 177 and NO_DRAFT not in paper.shapes
    assert ActionGrid.of(paper.as_dict()) == paper and "mask" not in GRID.as_dict()
    assert NO_DRAFT in GRID.shapes and replace(GRID, mask="drafting").shapes == GRID.shapes[1:]
    with pytest.raises(
        ConfigError, match="mask of an action grid must be one of pool, growing, drafting, resps, got colour"
    ):
        ActionGrid("paper", (32,), (4,), (8,), "colour")
    with pytest.raises(ConfigError, match=r"has no tree that grid\.mask=resps allows"):
        ActionGrid("paper", (32,), (2,), (8,), "resps")


def test_a_level_with_fewer_candidates_than_every_size_is_verified_as_it_is():
    recorded = traces(lengths=(40, 40))
    grid = ltd_grid(ActionGrid("g", (8, 10), (1, 2, 3), (2,)), 2, 3)
    assert grid.mask == "growing" and ltd_grid(LTD, 2, 3).mask == "pool"
    policy = ltd_policy(grid, None, None)
    depths = 1 + np.arange(recorded.num_roots) % np.clip(recorded.levels, 1, 3)
    actions, nodes = grown_actions(policy, recorded, 0, depths), nodes_of(policy, recorded, 0, depths)
    assert set(zip(depths.tolist(), nodes.tolist(), strict=True)) == {(1, 3), (2, 7), (3, 10)}
    rows = np.flatnonzero(recorded.levels > 0)  # below the last root nothing is drafted
    actions, nodes, depths = actions[rows], nodes[rows], depths[rows]
    replayed_depths, replayed_nodes = (values[rows, actions] for values in recorded.drafted(grid))
    assert replayed_nodes.tolist() == nodes.tolist() and replayed_depths.tolist() == depths.tolist()
    assert sizes_allowed(grid, np.array([1, 2, 3])).tolist() == [[True, False], [True, False], [True, True]]


@pytest.mark.parametrize("hold_cycles", [1, 4])
def test_shapes_played_in_an_environment_cost_what_they_cost_in_replay(hold_cycles):
    outcomes = table(lengths=(20, 20, 20))
    env = ShapeEnvironment(outcomes, np.zeros((outcomes.num_roots, 2), np.float32), num_envs=5, hold_cycles=hold_cycles)
    for action in (0, 3):
        env.reset()
        begun = outcomes.answer_of[env.rows]
        seconds, over = np.zeros(5), np.zeros(5, dtype=bool)
        while not over.all():
            step = env.step(np.full(5, action))
            seconds += np.where(over, 0.0, step.seconds)
            over |= step.dones
        assert seconds == pytest.approx(play_static(outcomes)[begun, action])


def test_rewards_are_the_mean_of_the_cycles_throughputs():
    outcomes = table(lengths=(30,))
    env = ShapeEnvironment(outcomes, np.zeros((30, 1), np.float32), num_envs=1, hold_cycles=3)
    env.reset()
    row, ratios = int(env.rows[0]), []
    for _ in range(3):
        ratios.append(outcomes.tokens[row, 2] / outcomes.seconds[row, 2] * 0.01)
        row += int(outcomes.tokens[row, 2])
    step = env.step(np.array([2]))
    assert step.rewards[0] == pytest.approx(np.mean(ratios), rel=1e-5) and step.cycles[0] == 3


def test_depths_chosen_level_by_level_equal_those_of_replay():
    recorded = traces(lengths=(40, 40))
    outcomes = build_table(recorded, LTD, 0, profile())
    torch.manual_seed(4)
    first = np.ones(recorded.num_roots, dtype=np.int64)
    net = undecided(depth_observations(recorded.rows["scores"][0], first, recorded.positions, 2), 2)
    depths = levels_of(ltd_policy(LTD, net, None), recorded, 0)
    assert set(depths.tolist()) == {1, 2, 3}
    actions_of_depth = actions_by_size(LTD)[:, 1]
    env = DepthEnvironment(
        outcomes, recorded, 0, np.tile(actions_of_depth, (outcomes.num_roots, 1)), num_envs=4, seed=1
    )
    seen, masks = env.reset()
    for _ in range(60):
        rows = env.rows.copy()
        actions = net.logits(torch.from_numpy(seen), torch.from_numpy(masks)).argmax(dim=1).numpy()
        levels = env.levels + ((actions == 1) & masks[:, 1])
        step = env.step(actions)
        for environment in np.flatnonzero(step.cycles):
            row, level = rows[environment], levels[environment]
            assert level == depths[row]
            assert step.seconds[environment] == outcomes.seconds[row, actions_of_depth[level - 1]]
        seen, masks = step.observations, step.masks


def test_sizes_chosen_in_the_environment_equal_those_of_replay():
    recorded = traces(lengths=(40, 40))
    outcomes = build_table(recorded, LTD, 0, profile())
    torch.manual_seed(3)
    depths = levels_of(ltd_policy(LTD, None, None), recorded, 0)
    assert depths.tolist() == np.clip(recorded.levels, 1, 3).tolist()
    net = undecided(size_observations(recorded.rows["scores"][0], depths, recorded.positions, 2, 3), 3)
    policy = ltd_policy(LTD, None, net)
    sizes = [policy.sizes.index(count) for count in nodes_of(policy, recorded, 0, depths)]
    env = SizeEnvironment(outcomes, recorded, 0, depths, num_envs=4, seed=1)
    seen, masks = env.reset()
    for _ in range(40):
        rows = env.rows.copy()
        actions = net.logits(torch.from_numpy(seen), torch.from_numpy(masks)).argmax(dim=1).numpy()
        assert actions.tolist() == [sizes[row] for row in rows]
        seen, masks = (step := env.step(actions)).observations, step.masks
        assert (step.dones).all()
    actions = grown_actions(policy, recorded, 0)
    assert play(outcomes, lambda at: actions[at]).tokens.sum() == outcomes.num_roots


@pytest.mark.parametrize("sized", [True, False])
def test_sizes_chosen_live_equal_those_of_training(sized):
    """Pools of 2, 6 and 10 candidates, whose sizes are no size of the grid."""
    recorded = traces(lengths=(40, 40))
    grid = ActionGrid("ltd", (1, 2, 4, 8, 16), (1, 2, 3), (2,))
    torch.manual_seed(3)
    depths = 1 + np.arange(recorded.num_roots) % np.clip(recorded.levels, 1, 3)
    seen = size_observations(recorded.rows["scores"][0], depths, recorded.positions, 2, 3)
    net = undecided(seen, 4) if sized else None
    policy = ltd_policy(grid, None, net)
    nodes, sizes = nodes_of(policy, recorded, 0, depths), np.full(recorded.num_roots, 3)
    if sized:
        allowed = torch.from_numpy(sizes_allowed(grid, depths))
        sizes = net.logits(torch.from_numpy(seen), allowed).argmax(dim=1).numpy()
    actions = actions_by_size(grid)[depths - 1, sizes]
    assert actions.tolist() == grown_actions(policy, recorded, 0, depths).tolist()
    assert nodes.tolist() == grid.table[actions, 0].tolist() and len({*nodes.tolist()}) > 1


def test_observations_hold_the_configured_parts():
    recorded = traces()
    assert observations_of(recorded, 0, ["features"]).shape == (recorded.num_roots, 6)
    seen = observations_of(recorded, 0, ["children", "length"])
    assert seen.shape == (recorded.num_roots, 22) and np.isfinite(seen).all()
    assert seen[:, 10:20] == pytest.approx(np.exp(seen[:, :10]))
    with pytest.raises(ConfigError, match="reward must be one of"):
        ShapeEnvironment(table(), seen, reward="speed")
