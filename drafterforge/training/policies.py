"""Trains policies of every method from traces and a latency profile.

Axes: R roots, A actions, D levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.runs import fingerprint_of
from drafterforge.config.policy import (
    LTDPolicyConfig,
    MarginalPolicyConfig,
    NetworkPolicyConfig,
    PlannerPolicyConfig,
    PolicyConfig,
    PPOPolicyConfig,
    ReSpSPolicyConfig,
    ShapePolicyConfig,
)
from drafterforge.config.progress import bar
from drafterforge.errors import ConfigError
from drafterforge.replay.environment import DepthEnvironment, ShapeEnvironment, SizeEnvironment, VectorEnvironment
from drafterforge.replay.scheduler_actions import grown_actions, levels_of, observations_of
from drafterforge.replay.table import build_table, play, play_static
from drafterforge.replay.trace import Traces
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.growing import LTDPolicy
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.schedulers.marginal import MarginalPolicy, marginal_grid, require_scored, verify_s
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.training.planner import PlannerConfig, train_planner
from drafterforge.training.ppo_fit import fit_ppo
from drafterforge.training.ppo_module import PPOConfig, PPOModule

Curve = list[dict[str, float]]
REACHES = tuple(round(0.1 + 0.05 * step, 2) for step in range(15))  # values of `marginal`'s reach that are tried
RATES = tuple(0.4 + 0.1 * step for step in range(13))  # of its rate, in tokens/s of the best static tree
NUMBERS_TRIED = 2 * (len(REACHES) + len(RATES))  # pairs that a search tries, about
NORMALISING = 1 << 17  # observations at most that give a network's normalisation
LTD_NETS = {"depth": ["depth"], "size": ["size"], "independent": ["size", "depth"], "both": ["size", "depth"]}


@dataclass(frozen=True)
class PolicyInputs:
    """What a policy is trained on."""

    traces: Traces
    drafter: int
    profile: LatencyProfile
    grid: ActionGrid
    folder: Path  # of logs
    seed: int


@dataclass(frozen=True)
class FittedPolicy:
    """A trained policy, as `save_policy` takes it, and its learning curves."""

    spec: PolicySpec
    nets: dict[str, ActorCritic]
    curves: dict[str, Curve]
    seconds: torch.Tensor | None = None  # of `marginal`: what verifying each number of nodes takes


def fit_policy(config: PolicyConfig, inputs: PolicyInputs, drafter: Manifest) -> FittedPolicy:
    """Train a policy of any method, with a bar.  drafter: the one that it schedules."""
    method, score_top_k = config.method, inputs.traces.spec.score_top_k
    grows, grid = method in ("ltd", "marginal"), policy_grid(config, inputs.grid, score_top_k)
    spec = PolicySpec(
        kind=method if grows else "shapes",
        method=method,
        target_fingerprint=drafter.target_fingerprint,
        drafter=inputs.traces.spec.drafters[inputs.drafter],
        drafter_sha256=fingerprint_of(drafter),
        device=inputs.profile.device,
        grid=grid.as_dict(),
        **observed_settings(config),
        top_k=score_top_k if grows else 0,
    )
    if method == "marginal":
        with bar("training marginal", NUMBERS_TRIED) as progress:
            policy, curves = train_marginal(spec, inputs, lambda text: progress.advance(status=text))
        return FittedPolicy(policy.spec, {}, curves, policy.seconds)
    if method == "ltd":
        nets, curves = train_ltd(config, inputs)
    elif isinstance(config, PlannerPolicyConfig):
        with bar("training planner", config.planner_rounds) as progress:
            nets, curves = train_shapes(config, inputs, lambda text: progress.advance(status=text))
    else:
        nets, curves = train_shapes(config, inputs)
    hidden = {name: list(part_of(config, name).actor) for name in nets}
    return FittedPolicy(replace(spec, hidden=hidden), nets, curves)


def policy_grid(config: PolicyConfig, grid: ActionGrid, score_top_k: int) -> ActionGrid:
    """The trees that a policy can choose; ConfigError if `grid` lacks those that it needs."""
    if isinstance(config, LTDPolicyConfig):
        alone = ltd_grid(grid, score_top_k, config.max_depth, config.alone_size)
        return alone if config.decides == "depth" else ltd_grid(grid, score_top_k, config.max_depth)
    if isinstance(config, MarginalPolicyConfig):
        return marginal_grid(grid, score_top_k, config.max_depth)
    return grid


def train_shapes(
    config: ReSpSPolicyConfig | PlannerPolicyConfig,
    inputs: PolicyInputs,
    advance: Callable[[str], None] = lambda _: None,
) -> tuple[dict, dict[str, Curve]]:
    """Networks and curves of `resps` and `planner`."""
    torch.manual_seed(inputs.seed)
    table = build_table(inputs.traces, inputs.grid, inputs.drafter, inputs.profile)
    observations = observations_of(inputs.traces, inputs.drafter, config.parts)
    if isinstance(config, PlannerPolicyConfig):
        net = ActorCritic(observations.shape[1], len(inputs.grid), config.actor, critic=())  # a critic is not trained
        planner_config = PlannerConfig(rounds=config.planner_rounds, weight_decay=config.weight_decay)
        curve = train_planner(net, observations, table, planner_config, inputs.seed, advance)
        return {"shapes": net}, {"shapes": curve}
    settings = config.num_envs, config.train_hold_cycles, reward_of(config), inputs.seed
    environment = ShapeEnvironment(table, observations, *settings)
    net, curve = fit_shape_net(config, environment, observations, inputs.folder, inputs.seed)
    return {"shapes": net}, {"shapes": curve}


def fit_shape_net(
    config: ReSpSPolicyConfig, environment: VectorEnvironment, observations: np.ndarray, folder: Path, seed: int
) -> tuple[ActorCritic, Curve]:
    """A network of `resps` trained on an environment, and its curve.

    observations: that normalise it, [n, O].  folder: of logs.
    """
    torch.manual_seed(seed)
    net = ActorCritic(environment.observation_size, environment.num_actions, config.actor, config.critic)
    step = -(-len(observations) // NORMALISING)
    net.normalise_by(torch.from_numpy(observations[::step]))
    return net, fit_ppo(PPOModule(net, environment, ppo_config(config)), folder, seed)


def train_ltd(config: LTDPolicyConfig, inputs: PolicyInputs) -> tuple[dict, dict[str, Curve]]:
    """Networks and curves of `ltd`.

    Each network is trained alone first: size on trees of random depths, depth on trees of `alone_size` nodes.  With
    decides=both they then take turns, each trained with the other's network fixed.
    """
    trainings = [(name, False) for name in LTD_NETS[config.decides]]
    if config.decides == "both":
        trainings += [(name, True) for name in LTD_NETS["both"]] * (config.rounds - 1)
    nets: dict[str, ActorCritic | None] = {"depth": None, "size": None}
    curves: dict[str, Curve] = {}
    for number, (name, in_turn) in enumerate(trainings):
        fixed = nets["depth" if name == "size" else "size"] if in_turn else None
        environment = ltd_environment(config, inputs, name, fixed, inputs.seed + number)
        net, net_config = nets[name], part_of(config, name)
        if net is None:
            torch.manual_seed(inputs.seed + number)
            sizes = environment.observation_size, environment.num_actions
            net = ActorCritic(*sizes, net_config.actor, net_config.critic)
            net.normalise_by(torch.from_numpy(random_observations(environment)))
        budget = {"total_cycles": max(config.total_cycles // len(trainings), 1)}
        decisions = config.size_decisions if name == "size" else config.depth_decisions
        module = PPOModule(net, environment, replace(ppo_config(net_config), **budget, total_decisions=decisions))
        curves[f"{number + 1} {name}"] = fit_ppo(module, inputs.folder / f"{number + 1}-{name}", inputs.seed + number)
        nets[name] = net.eval()
    return {name: net for name, net in nets.items() if net is not None}, curves


def ltd_environment(
    config: LTDPolicyConfig, inputs: PolicyInputs, name: str, fixed: ActorCritic | None, seed: int
) -> DepthEnvironment | SizeEnvironment:
    """The environment of a network of `ltd`.  fixed: the other network; None: it is trained alone."""
    traces, drafter, top_k = inputs.traces, inputs.drafter, inputs.traces.spec.score_top_k
    is_depth_alone = name == "depth" and fixed is None
    grid = ltd_grid(inputs.grid, top_k, config.max_depth, config.alone_size if is_depth_alone else None)
    table = build_table(traces, grid, drafter, inputs.profile, grows=True)
    spec = PolicySpec("ltd", "ltd", "", "", "", "", grid.as_dict(), top_k=top_k)
    settings = config.num_envs, reward_of(config), seed
    if name == "size":
        depths = None if fixed is None else levels_of(LTDPolicy(spec, fixed, None), traces, drafter)
        return SizeEnvironment(table, traces, drafter, depths, *settings)
    levels, policy = np.clip(traces.levels, 1, max(grid.depths)), LTDPolicy(spec, None, fixed)
    depths = (np.minimum(depth, levels) for depth in range(1, max(grid.depths) + 1))
    actions = np.stack([grown_actions(policy, traces, drafter, each) for each in depths], axis=1)
    return DepthEnvironment(table, traces, drafter, actions, *settings)


def train_marginal(
    spec: PolicySpec, inputs: PolicyInputs, advance: Callable[[str], None]
) -> tuple[MarginalPolicy, dict[str, Curve]]:
    """`marginal` with the reach and rate whose replay takes the fewest seconds.

    spec: with the grid of `marginal_grid`.  The search varies one number at a time until neither changes.
    """
    traces, drafter, grid = inputs.traces, inputs.drafter, ActionGrid.of(spec.grid)
    table = build_table(traces, grid, drafter, inputs.profile, grows=True)
    seconds = torch.from_numpy(verify_s(inputs.profile, grid.num_tokens, float(traces.positions.mean())))
    tried: dict[tuple[float, float], float] = {}
    curve: Curve = []

    def policy_of(reach: float, rate: float) -> MarginalPolicy:
        return MarginalPolicy(replace(spec, numbers={"reach": reach, "rate": rate}), seconds)

    def replayed_rate(numbers: tuple[float, float]) -> float:
        if numbers not in tried:
            actions = grown_actions(policy_of(*numbers), traces, drafter)
            tried[numbers] = play(table, lambda rows: actions[rows]).tokens_per_s
            best = max(tried, key=tried.get)
            curve.append({"round": len(tried), "train/tokens_per_s": tried[best], "reach": best[0], "rate": best[1]})
            advance(f"{tried[best]:.1f} tokens/s")
        return tried[numbers]

    static = table.num_tokens.sum() / play_static(table).sum(axis=0).min()
    rates = [round(float(static * share), 3) for share in RATES]
    best, before = (REACHES[len(REACHES) // 2], rates[len(rates) // 2]), None
    while best != before:
        before = best
        best = max(((reach, best[1]) for reach in REACHES), key=replayed_rate)
        best = max(((best[0], rate) for rate in rates), key=replayed_rate)
    return policy_of(*best), {"marginal": curve}


def observed_settings(config: PolicyConfig) -> dict[str, Any]:
    """Keys of a policy's description that say what it observes and how many cycles an action lasts."""
    if not isinstance(config, ShapePolicyConfig):
        return {}
    return {"parts": list(config.parts), "hold_cycles": config.hold_cycles, "temperature": config.temperature}


def part_of(config: NetworkPolicyConfig, name: str) -> NetworkPolicyConfig:
    """Settings of the network of this name; LTD's size network has its own actor and gamma."""
    if name != "size" or not isinstance(config, LTDPolicyConfig):
        return config
    actor = config.actor if config.size_actor is None else config.size_actor
    return replace(config, actor=actor, gamma=config.gamma if config.size_gamma is None else config.size_gamma)


def ltd_grid(grid: ActionGrid, score_top_k: int, max_depth: int, size: int | None = None) -> ActionGrid:
    """The trees that LTD's two policies can choose: one width, every depth; of one size, if `size` is given."""
    require_scored(grid, score_top_k)
    if size is not None and size > max(grid.num_tokens):
        raise ConfigError(
            f"policy.alone_size={size} is beyond the {max(grid.num_tokens)} nodes of the grid {grid.name!r}; "
            f"type policy.alone_size={max(grid.num_tokens)}, or grid.num_tokens= with larger trees"
        )
    sizes = grid.num_tokens if size is None else (size,)
    depths = tuple(range(1, min(max_depth, max(grid.depths)) + 1))
    smallest = min((count for count in sizes if count > 1), default=0)
    mask = "growing" if smallest > score_top_k + 1 else "pool"  # a level may have fewer candidates than any size
    return ActionGrid(f"{grid.name}, ltd", sizes, depths, (score_top_k,), mask)


def random_observations(environment: DepthEnvironment | SizeEnvironment, count: int = 2048) -> np.ndarray:
    """Observations of a random policy, `count` of them or a few more, which normalise a network, [n, O]."""
    draw = np.random.default_rng(0)
    first, masks = environment.reset()
    observations = [first]
    for _ in range(-(-count // environment.num_envs)):
        noise = draw.random(masks.shape) * masks
        step = environment.step(noise.argmax(axis=1))
        masks = step.masks
        observations.append(step.observations)
    return np.concatenate(observations)


def reward_of(config: PPOPolicyConfig) -> str:
    """The environments' reward; not read where the objective is the average."""
    return "throughput" if config.objective == "average" else config.objective


def ppo_config(config: PPOPolicyConfig) -> PPOConfig:
    """The part of the configuration that PPO reads."""
    return PPOConfig(
        total_cycles=config.total_cycles,
        num_steps=config.num_steps,
        batch_size=config.batch_size,
        epochs=config.epochs,
        lr=config.lr,
        schedule=config.schedule,
        gamma=config.gamma,
        lam=config.lam,
        entropy=config.entropy,
        objective="average" if config.objective == "average" else "reward",
    )
