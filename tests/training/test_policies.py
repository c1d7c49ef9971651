"""Each method trains its policy from replayed answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drafterforge.artifacts.manifest import Manifest
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.compose import load_config
from drafterforge.config.policy import LTDPolicyConfig
from drafterforge.errors import ConfigError
from drafterforge.replay.scheduler_actions import grown_actions
from drafterforge.replay.table import build_table, play
from drafterforge.router.router import Router
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.marginal import MarginalPolicy, marginal_grid
from drafterforge.schedulers.policy import load_policy
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.training import policies
from drafterforge.training.learning_curves import thinned
from tests.replay.builders import profile, traces


def widths(network: torch.nn.Sequential) -> list[int]:
    """Widths of the hidden layers."""
    return [layer.weight.shape[1] for layer in list(network)[::2]][:-1]


@pytest.mark.parametrize("decides", ["both", "independent"])
def test_ltd_trains_the_papers_networks_each_with_its_own_discount(tmp_path, monkeypatch, decides):
    config = load_config("train_policy", TrainPolicyConfig, ["policy=ltd", f"policy.decides={decides}"]).policy
    seen = []
    monkeypatch.setattr(
        policies, "fit_ppo", lambda module, folder, seed: seen.append((folder.name, module.config.gamma)) or []
    )
    inputs = policies.PolicyInputs(traces(), 0, profile(), ActionGrid("g", (1, 2, 4), (1, 2), (1, 2)), tmp_path, 0)
    nets, _ = policies.train_ltd(config, inputs)
    assert widths(nets["size"].actor) == [1024, 256] == widths(nets["size"].critic)
    assert widths(nets["depth"].actor) == [1024] and widths(nets["depth"].critic) == [1024, 256]
    assert {(name.split("-")[1], gamma) for name, gamma in seen} == {("size", 0.9), ("depth", 0.999)}


def test_ltd_trains_each_network_alone_before_they_take_turns(tmp_path, monkeypatch):
    config = LTDPolicyConfig(method="ltd", alone_size=4, size_decisions=20, depth_decisions=30, actor=[4], critic=[4])
    recorded, action_grid = traces(), ActionGrid("g", (2, 4, 8), (1, 2), (1, 2))
    inputs = policies.PolicyInputs(recorded, 0, profile(), action_grid, tmp_path, 0)
    trainings, real = [], policies.fit_ppo

    def fit(module, folder, seed):
        trainings.append((folder.name, module.environment))
        curve = real(module, folder, seed, progress=False)
        budget = 20 if "size" in folder.name else 30
        assert budget <= module.decisions < budget + config.num_envs
        return curve

    monkeypatch.setattr(policies, "fit_ppo", fit)
    policies.train_ltd(config, inputs)
    assert [name for name, _ in trainings] == ["1-size", "2-depth", "3-size", "4-depth"]
    size_alone, depth_alone, size_in_turn, depth_in_turn = (environment for _, environment in trainings)
    assert size_alone.fixed is None and size_in_turn.fixed is not None  # random depths; those of the depth network
    nodes = depth_alone.table.grid.table[depth_alone.actions, 0]
    assert set(nodes[:, 1].tolist()) == {4}  # of two levels, whatever the size network has learnt
    assert depth_in_turn.table.grid.num_tokens == action_grid.num_tokens


def test_a_stored_curve_ends_with_the_last_point_and_has_a_thousand_at_most():
    curves = {name: [{"round": n} for n in range(count)] for name, count in (("short", 3), ("none", 0), ("long", 7812))}
    stored = thinned(curves)
    assert (stored["short"], stored["none"]) == (curves["short"], [])
    assert len(stored["long"]) == 977 and stored["long"][-1] == {"round": 7811}


@pytest.mark.parametrize("num_envs", [1, 64])
def test_a_network_is_normalised_by_as_many_observations_whatever_the_environments(tmp_path, num_envs):
    config = LTDPolicyConfig(method="ltd", num_envs=num_envs)
    inputs = policies.PolicyInputs(traces(), 0, profile(), ActionGrid("g", (2, 4), (1, 2), (1, 2)), tmp_path, 0)
    environment = policies.ltd_environment(config, inputs, "depth", None, 0)
    assert len(policies.random_observations(environment)) == 2048 + num_envs


def test_a_depth_policy_alone_verifies_the_same_number_of_nodes_in_decoding(tmp_path, monkeypatch):
    monkeypatch.setattr(policies, "fit_ppo", lambda *_: [])
    config = LTDPolicyConfig(method="ltd", decides="depth", alone_size=4)
    inputs = policies.PolicyInputs(traces(), 0, profile(), ActionGrid("g", (1, 2, 8), (1, 2), (1, 2)), tmp_path, 0)
    drafter = Manifest("drafters", "a", "tiny", "f", {}, {}, "now")
    monkeypatch.setattr(policies, "fingerprint_of", lambda _: "sha")
    fitted = policies.fit_policy(config, inputs, drafter)
    assert fitted.spec.grid["num_tokens"] == [4]
    with pytest.raises(ConfigError, match=r"policy\.alone_size=9 is beyond the 8 nodes of the grid 'g'"):
        policies.fit_policy(replace(config, alone_size=9), inputs, drafter)


@pytest.mark.parametrize("decides", ["depth", "size"])
def test_ltd_trains_one_network_alone(tmp_path, monkeypatch, decides):
    config = load_config("train_policy", TrainPolicyConfig, ["policy=ltd", f"policy.decides={decides}"]).policy
    monkeypatch.setattr(policies, "fit_ppo", lambda *_: [])
    inputs = policies.PolicyInputs(traces(), 0, profile(), ActionGrid("g", (1, 2, 4), (1, 2), (1, 2)), tmp_path, 0)
    assert list(policies.train_ltd(config, inputs)[0]) == [decides]


def test_marginal_finds_the_numbers_with_the_highest_rate(tmp_path):
    torch.manual_seed(0)
    recorded = traces(lengths=(40, 40))
    action_grid = ActionGrid("g", (1, 2, 4, 8), (1, 2, 3), (2,))
    inputs = policies.PolicyInputs(recorded, 0, profile(), action_grid, tmp_path, 0)
    grid = marginal_grid(action_grid, 2, 8)
    assert (grid.num_tokens, grid.depths, grid.top_ks) == (tuple(range(2, 9)), (1, 2, 3), (2,))
    spec = PolicySpec("marginal", "marginal", "", "a", "", "cpu", grid.as_dict(), top_k=2)
    messages = []
    policy, curves = policies.train_marginal(spec, inputs, messages.append)
    table = build_table(recorded, grid, 0, profile())

    def rate_of(candidate: MarginalPolicy) -> float:
        actions = grown_actions(candidate, recorded, 0)
        return play(table, lambda rows: actions[rows]).tokens_per_s

    best = rate_of(policy)
    assert best == curves["marginal"][-1]["train/tokens_per_s"] and len(messages) == len(curves["marginal"])
    for reach in policies.REACHES:
        assert (
            rate_of(MarginalPolicy(replace(spec, numbers=policy.spec.numbers | {"reach": reach}), policy.seconds))
            <= best
        )
    with pytest.raises(ConfigError, match="the scores of top_k=4, which the grid 'g' lacks"):
        marginal_grid(action_grid, 4, 8)


def test_a_size_policy_without_its_own_settings_has_those_of_the_depth_policy():
    config = LTDPolicyConfig(actor=[8], gamma=0.5)
    assert policies.part_of(config, "size") == policies.part_of(config, "depth") == config
    with_size_settings = replace(config, size_actor=[4, 2], size_gamma=0.25)
    assert (policies.part_of(with_size_settings, "size").actor, policies.part_of(with_size_settings, "size").gamma) == (
        [4, 2],
        0.25,
    )
    assert policies.part_of(with_size_settings, "depth").actor == [8]


def test_a_router_is_no_scheduler_and_a_scheduler_is_no_router(tmp_path):
    for name in ("router", "policy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"not a tree scheduler; type pool\.router=router, or .*policy=planner"):
        load_policy(tmp_path / "router")
    with pytest.raises(ConfigError, match=r"not a router; type pool\.scheduler=policy, or .*policy=router"):
        Router.load(tmp_path / "policy")
