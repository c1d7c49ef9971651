"""Our PPO and stable-baselines3's: the same advantages, losses and gradients, and the same optimum."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from drafterforge.replay.environment import Step
from drafterforge.schedulers.nets import ActorCritic, act
from drafterforge.training.ppo import explained_variance, gae, log_probs_of, ppo_loss, standardised
from drafterforge.training.ppo_fit import fit_ppo
from drafterforge.training.ppo_module import PPOConfig, PPOModule

gymnasium = pytest.importorskip("gymnasium")
sb3 = pytest.importorskip("stable_baselines3")

pytestmark = [pytest.mark.external, pytest.mark.slow]

LENGTH, NUM_ENVS, NUM_STEPS, LIMIT = 6, 8, 32, 20
SETTINGS = {"gamma": 0.95, "lam": 0.9, "clip": 0.2, "value_weight": 0.5, "entropy": 0.01, "lr": 3e-3}


class Corridor(gymnasium.Env):
    """Stand still, go left, go right; a step costs 0.1, the right end pays 1."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.steps = int(self.np_random.integers(LENGTH - 1)), 0
        return self.observe(), {}

    def observe(self):
        return np.eye(LENGTH, dtype=np.float32)[self.position]

    def step(self, action):
        self.position = min(max(self.position + (0, -1, 1)[int(action)], 0), LENGTH - 1)
        self.steps += 1
        arrived = self.position == LENGTH - 1
        return self.observe(), float(arrived) - 0.1, arrived or self.steps == LIMIT, False, {}


class Corridors:
    """The same environment, several at once, for our module."""

    num_envs, observation_size, num_actions = NUM_ENVS, LENGTH, 3

    def __init__(self) -> None:
        self.envs = [Corridor() for _ in range(NUM_ENVS)]
        self.masks = np.ones((NUM_ENVS, 3), dtype=bool)

    def reset(self):
        return np.stack([env.reset(seed=i)[0] for i, env in enumerate(self.envs)]), self.masks

    def step(self, actions):
        played = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        seen = [env.reset()[0] if done else seen for env, (seen, _, done, _, _) in zip(self.envs, played, strict=True)]
        rewards, dones = np.float32([p[1] for p in played]), np.array([p[2] for p in played])
        ones = np.ones(NUM_ENVS)
        return Step(np.stack(seen), self.masks, rewards, dones, ones, ones, ones.astype(int))


def peer(**changes):
    """stable-baselines3's PPO with our settings."""
    envs = sb3.common.vec_env.DummyVecEnv([Corridor] * NUM_ENVS)
    settings = {
        "n_steps": NUM_STEPS,
        "batch_size": 64,
        "n_epochs": 4,
        "learning_rate": SETTINGS["lr"],
        "gamma": SETTINGS["gamma"],
        "gae_lambda": SETTINGS["lam"],
        "clip_range": SETTINGS["clip"],
        "vf_coef": SETTINGS["value_weight"],
        "ent_coef": SETTINGS["entropy"],
        "policy_kwargs": {"net_arch": {"pi": [32, 32], "vf": [32, 32]}},
    }
    return sb3.PPO("MlpPolicy", envs, seed=0, device="cpu", **(settings | changes))


@pytest.fixture(scope="module")
def rollout():
    """A peer with one collected rollout, before its first update."""
    model = peer(batch_size=NUM_STEPS * NUM_ENVS, n_epochs=1, max_grad_norm=1e9)
    _, callback = model._setup_learn(NUM_STEPS * NUM_ENVS)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, NUM_STEPS)
    return model


def tensors(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def test_advantages_and_returns_of_a_rollout_are_equal(rollout):
    buffer = copy.deepcopy(rollout.rollout_buffer)
    dones = np.concatenate((buffer.episode_starts[1:], rollout._last_episode_starts[None])).astype(bool)
    assert dones.any() and not dones.all()
    with torch.no_grad():
        last_values = rollout.policy.predict_values(torch.from_numpy(rollout._last_obs)).flatten()
    rewards, values, dones = tensors(buffer.rewards, buffer.values, dones)
    results = gae(rewards, values, last_values, dones, SETTINGS["gamma"], SETTINGS["lam"])
    for ours, theirs in zip(results, tensors(buffer.advantages, buffer.returns), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_losses_diagnostics_and_gradients_of_a_rollout_are_equal(rollout):
    model, buffer = rollout, copy.deepcopy(rollout.rollout_buffer)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # the policy has changed since the rollout, so that ratios differ from 1 and some are clipped
        for parameter in model.policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    policy = copy.deepcopy(model.policy)
    model.train()
    theirs = model.logger.name_to_value

    flat = [array.reshape(NUM_STEPS * NUM_ENVS, *array.shape[2:]) for array in (buffer.observations, buffer.actions)]
    observations, actions = tensors(*flat)
    actions = actions.long().flatten()
    old, advantages, returns, old_values = (
        x.flatten() for x in tensors(buffer.log_probs, buffer.advantages, buffer.returns, buffer.values)
    )
    logits = policy.get_distribution(observations).distribution.logits
    torch.testing.assert_close(log_probs_of(logits, actions), policy.evaluate_actions(observations, actions)[1])
    loss, ours = ppo_loss(
        logits,
        policy.predict_values(observations).flatten(),
        actions,
        old,
        standardised(advantages),
        returns,
        clip=SETTINGS["clip"],
        value_weight=SETTINGS["value_weight"],
        entropy_weight=SETTINGS["entropy"],
    )
    pairs = {
        "loss": (loss, 1),
        "policy_gradient_loss": (ours.policy_loss, 1),
        "value_loss": (ours.value_loss, 1),
        "entropy_loss": (ours.entropy, -1),
        "approx_kl": (ours.approx_kl, 1),
        "clip_fraction": (ours.clip_fraction, 1),
        "explained_variance": (explained_variance(old_values, returns), 1),
    }
    for name, (value, sign) in pairs.items():
        assert sign * value.item() == pytest.approx(float(theirs[f"train/{name}"]), rel=1e-4, abs=1e-6), name
    assert 0.05 < ours.clip_fraction < 0.95
    loss.backward()
    grads = {name: parameter.grad for name, parameter in model.policy.named_parameters()}
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[name], rtol=1e-4, atol=1e-6)


def mean_return(choose) -> float:
    """The mean return of 20 episodes from each position with the actions of choose(observation)."""
    total = 0.0
    for start in list(range(LENGTH - 1)) * 20:
        env = Corridor()
        env.reset(seed=0)
        env.position, done = start, False
        while not done:
            _, reward, done, _, _ = env.step(choose(env.observe()))
            total += reward
    return total / (20 * (LENGTH - 1))


def test_both_reach_the_optimum_of_the_same_environment(tmp_path):
    optimum = 1.0 - 0.1 * LENGTH / 2  # one step to LENGTH - 1 steps
    budget = 10_000
    model = peer().learn(budget)
    torch.manual_seed(0)
    config = PPOConfig(total_cycles=budget, num_steps=NUM_STEPS, batch_size=64, objective="reward", **SETTINGS)
    module = PPOModule(ActorCritic(LENGTH, 3, (32, 32), (32, 32)), Corridors(), config)
    fit_ppo(module, tmp_path, seed=0, progress=False)
    # actions are drawn rather than the best ones, so that no tie decides
    with torch.no_grad():
        returns = {
            "ours": mean_return(
                lambda observation: act(module.net.logits(torch.from_numpy(observation[None])), 1.0).item()
            ),
            "theirs": mean_return(lambda observation: model.predict(observation, deterministic=False)[0]),
        }
    assert returns == pytest.approx({"ours": optimum, "theirs": optimum}, rel=0.04)
