"""PPO's functions equal slow ones and hand-computed numbers; its module solves problems with known solutions."""

from __future__ import annotations

import math
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drafterforge.errors import ConfigError
from drafterforge.replay.environment import Step
from drafterforge.schedulers.nets import ActorCritic, act, forbid
from drafterforge.training.ppo import (
    categorical_entropy,
    explained_variance,
    gae,
    log_probs_of,
    ppo_loss,
    standardised,
)
from drafterforge.training.ppo_fit import fit_ppo
from drafterforge.training.ppo_module import PPOConfig, PPOModule

QUICK = PPOConfig(total_cycles=3_000, num_steps=16, batch_size=64, lr=1e-2, gamma=0.9, entropy=0.0, objective="reward")
WEIGHTS = {"clip": 0.2, "value_weight": 0.5, "entropy_weight": 0.1}


class World:
    """Observations are one-hot states, every action is allowed, and a step is a cycle of one token and one second."""

    num_envs, num_states, num_actions = 16, 3, 4

    def __init__(self, seed: int = 0) -> None:
        self.observation_size = self.num_states
        self.rng = np.random.default_rng(seed)
        self.played: list[np.ndarray] = []

    def reset(self) -> tuple[np.ndarray, np.ndarray]:
        self.state = self.first_states()
        return self.observe()

    def first_states(self) -> np.ndarray:
        return self.rng.integers(self.num_states, size=self.num_envs)

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        return np.eye(self.num_states, dtype=np.float32)[self.state], self.masks()

    def masks(self) -> np.ndarray:
        return np.ones((self.num_envs, self.num_actions), dtype=bool)

    def step(self, actions: np.ndarray) -> Step:
        self.played.append(actions.copy())
        rewards, dones = self.play(actions)
        ones = np.ones(self.num_envs)
        self.state = np.where(dones, self.first_states(), self.state)
        return Step(*self.observe(), np.float32(rewards), dones, ones, ones, ones.astype(int))

    def play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError


class Bandit(World):
    """Action s + 1 is best in state s: a reward of 300 instead of 290, as tokens per second have."""

    def play(self, actions):
        return 290.0 + 10.0 * (actions == self.state + 1), np.ones(self.num_envs, dtype=bool)


class MaskedBandit(Bandit):
    """The best action is forbidden in state 0."""

    def masks(self):
        masks = super().masks()
        masks[self.state == 0, 1] = False
        return masks


class Chain(World):
    """Action 0 ends the episode with 0.3; action 1 moves on without reward, and from the last state ends it with 1."""

    num_states, num_actions = 4, 2

    def first_states(self):
        return np.zeros(self.num_envs, dtype=int)

    def play(self, actions):
        last = self.state == self.num_states - 1
        rewards = np.where(actions == 0, 0.3, last.astype(float))
        dones = (actions == 0) | last
        self.state = np.where(dones, self.state, self.state + 1)
        return rewards, dones


class Rates(World):
    """Action 0: 3 tokens in 1 s.  Action 1: a token in 0.1 s or 1.9 s, whose mean ratio is 5.3 but whose rate is 1."""

    num_states, num_actions = 1, 2

    def step(self, actions):
        quick = self.rng.random(self.num_envs) < 0.5
        tokens = np.where(actions == 0, 3.0, 1.0)
        seconds = np.where(actions == 0, 1.0, np.where(quick, 0.1, 1.9))
        rewards = np.float32(tokens / seconds)
        cycles = np.ones(self.num_envs, dtype=int)
        return Step(*self.observe(), rewards, np.zeros(self.num_envs, bool), tokens, seconds, cycles)


def module_of(world: World, config: PPOConfig = QUICK) -> PPOModule:
    torch.manual_seed(0)
    return PPOModule(ActorCritic(world.observation_size, world.num_actions, (16,), (16,)), world, config)


def train(folder: Path, world: World, config: PPOConfig = QUICK, seed: int = 0) -> PPOModule:
    module = module_of(world, config)
    fit_ppo(module, folder, seed, progress=False)
    return module


def test_a_budget_of_decisions_ends_the_training_whatever_the_cycles(tmp_path):
    config = replace(QUICK, total_cycles=1, total_decisions=3 * 16 * World.num_envs + 1, num_steps=16)
    module = train(tmp_path, Bandit(), config)
    assert module.decisions == 3 * 16 * World.num_envs + World.num_envs and len(module.curve) == 4


def choices(module: PPOModule, world: World) -> list[int]:
    """The policy's best action in each state."""
    return act(module.net.logits(torch.eye(world.num_states))).tolist()


def slow_gae(rewards, values, last_values, dones, gamma, lam):
    """The definition: sums of (gamma lam)^l delta up to the end of the episode."""
    steps, following = len(rewards), [*values[1:], last_values]
    delta = [rewards[t] + gamma * (not dones[t]) * following[t] - values[t] for t in range(steps)]
    ends = [next((u for u in range(t, steps) if dones[u]), steps - 1) for t in range(steps)]
    return [sum((gamma * lam) ** (u - t) * delta[u] for u in range(t, ends[t] + 1)) for t in range(steps)]


def test_gae_equals_its_definition():
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 9, 3, generator=generator, dtype=torch.float64)
    last_values = torch.randn(3, generator=generator, dtype=torch.float64)
    dones = torch.rand(9, 3, generator=generator) < 0.3
    advantages, returns = gae(rewards, values, last_values, dones, 0.9, 0.8)
    for e in range(3):
        columns = (x[..., e].tolist() for x in (rewards, values, last_values, dones))
        torch.testing.assert_close(advantages[:, e].tolist(), slow_gae(*columns, 0.9, 0.8))
    torch.testing.assert_close(returns, advantages + values)


def test_gae_of_three_steps_by_hand():
    rewards, values = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[0.5], [1.0], [2.0]])
    dones = torch.tensor([[False], [True], [False]])
    advantages, returns = gae(rewards, values, torch.tensor([4.0]), dones, 0.5, 0.5)
    # deltas 1 + 0.5 - 0.5, 2 - 1 and 3 + 2 - 2; no advantage crosses the end of the episode after the second step
    assert advantages.flatten().tolist() == [1.25, 1.0, 3.0]
    assert returns.flatten().tolist() == [1.75, 2.0, 5.0]


def test_lambda_one_gives_discounted_returns():
    rewards, values = torch.ones(4, 1), torch.randn(4, 1, generator=torch.Generator().manual_seed(1))
    dones = torch.tensor([[False], [False], [False], [True]])
    returns = gae(rewards, values, torch.tensor([99.0]), dones, 0.5, 1.0)[1]
    torch.testing.assert_close(returns.flatten(), torch.tensor([1.875, 1.75, 1.5, 1.0]))


def test_loss_and_gradient_of_one_decision_by_hand():
    logits = torch.zeros(1, 2, requires_grad=True)
    values = torch.tensor([1.0], requires_grad=True)
    old = torch.tensor([math.log(0.5 / 1.1)])  # the ratio is 1.1, inside the clip
    advantage, expected = torch.tensor([2.0]), torch.tensor([4.0])
    loss, terms = ppo_loss(logits, values, torch.tensor([0]), old, advantage, expected, **WEIGHTS)
    entropy = math.log(2.0)
    assert loss.item() == pytest.approx(-2.2 + 0.5 * 9.0 - 0.1 * entropy)
    assert terms.policy_loss.item() == pytest.approx(-2.2) and terms.value_loss.item() == pytest.approx(9.0)
    assert terms.approx_kl.item() == pytest.approx(0.1 - math.log(1.1), abs=1e-6) and terms.clip_fraction.item() == 0.0
    loss.backward()
    # d(-2 ratio)/d logit = -2 ratio (1 - p) and +2 ratio p; the entropy of a uniform choice is stationary
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.1, 1.1]]))
    torch.testing.assert_close(values.grad, torch.tensor([-3.0]))  # 0.5 x 2 x (1 - 4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"), [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False)]
)
def test_a_clipped_ratio_has_no_gradient_unless_the_gradient_moves_it_towards_1(ratio, advantage, moves):
    logits = torch.zeros(1, 2, requires_grad=True)
    old = torch.tensor([math.log(0.5 / ratio)])
    ones = torch.ones(1)
    loss, terms = ppo_loss(
        logits, ones, torch.tensor([0]), old, advantage * ones, ones, clip=0.2, value_weight=0.0, entropy_weight=0.0
    )
    loss.backward()
    assert terms.clip_fraction.item() == 1.0
    assert bool(logits.grad.abs().sum() > 0) == moves


def test_masked_actions_get_neither_probability_nor_gradient():
    raw = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask = torch.tensor([[True, False, True, False]]).expand(5, -1)
    logits, ones = forbid(raw, mask), torch.ones(5)
    loss, terms = ppo_loss(logits, ones, torch.full((5,), 2), -ones, ones, ones, **WEIGHTS)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(terms.entropy) and torch.isfinite(raw.grad).all()
    assert (raw.grad[~mask] == 0).all() and (raw.grad[mask] != 0).all()
    generator = torch.Generator().manual_seed(0)
    drawn = act(logits.detach().repeat(2_000, 1), 5.0, generator)
    assert set(drawn.tolist()) == {0, 2}
    assert set(act(logits.detach()).tolist()) <= {0, 2}


def test_entropy_of_a_uniform_choice_is_the_log_of_its_size():
    mask = torch.tensor([[True] * 6, [True, True, False, False, False, False], [True] + [False] * 5])
    log_probs = forbid(torch.zeros(3, 6), mask).log_softmax(dim=-1)
    torch.testing.assert_close(categorical_entropy(log_probs), torch.tensor([6.0, 2.0, 1.0]).log())


def test_actions_are_drawn_with_their_probability():
    logits = torch.tensor([[0.0, math.log(2.0), -torch.inf]]).expand(30_000, -1)
    generator = torch.Generator().manual_seed(0)
    for temperature, share in ((1.0, 2 / 3), (0.5, 4 / 5)):
        drawn = act(logits, temperature, generator).double().mean().item()
        assert drawn == pytest.approx(share, abs=0.015)


def test_small_functions_by_hand():
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    assert log_probs_of(probs.log(), torch.tensor([1, 0])).exp().tolist() == pytest.approx([0.75, 0.5])
    torch.testing.assert_close(standardised(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([-1.0, 0.0, 1.0]))
    assert standardised(torch.tensor([7.0])).tolist() == [7.0]
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0 and explained_variance(torch.ones(3), returns) == 0.0
    assert explained_variance(returns, torch.ones(3)) == 0.0


def test_observations_are_normalised_and_clipped():
    net = ActorCritic(3, 2, (4,), (4,))
    data = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e3, 1e-3, 0.0]) + 7.0
    net.normalise_by(data)
    seen = net.normalised(data)
    torch.testing.assert_close(seen.mean(dim=0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(seen.std(dim=0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-3, rtol=0)
    assert net.normalised(torch.full((1, 3), 1e9)).tolist() == [[10.0] * 3]


def test_serving_computes_the_logits_that_training_saw():
    net = ActorCritic(5, 6, (8,), (8, 4))
    observations, mask = torch.randn(7, 5), torch.rand(7, 6) < 0.7
    mask[:, 0] = True
    logits, values = net(observations, mask)
    assert torch.equal(net.logits(observations, mask), logits) and values.shape == (7,)
    assert (logits[~mask] == -torch.inf).all() and torch.isfinite(logits[mask]).all()
    again = ActorCritic(5, 6, (8,), (8, 4))
    again.load_state_dict(net.state_dict())
    assert torch.equal(again.logits(observations), net.logits(observations))


@pytest.mark.slow
def test_a_contextual_bandit_is_solved_whatever_the_size_of_its_rewards(tmp_path):
    world = Bandit()
    module = train(tmp_path, world)
    assert choices(module, world) == [1, 2, 3]
    assert module.curve[-1]["train/reward"] > 299.0
    assert module.curve[-1]["train/entropy"] < 0.3


def test_forbidden_actions_are_never_played(tmp_path):
    world = MaskedBandit()
    states: list[np.ndarray] = []
    world.play = lambda actions: (states.append(world.state.copy()), Bandit.play(world, actions))[1]
    module = train(tmp_path, world, replace(QUICK, total_cycles=1_500))
    played, states = np.concatenate(world.played), np.concatenate(states)
    assert not (played[states == 0] == 1).any() and (played[states == 1] == 1).any()
    assert all(math.isfinite(value) for point in module.curve for value in point.values())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("gamma", "first"), [(0.95, 1), (0.3, 0)])
def test_a_patient_policy_walks_to_the_end_of_the_chain(tmp_path, gamma, first):
    world = Chain()
    module = train(tmp_path, world, replace(QUICK, gamma=gamma, entropy=0.01, total_cycles=4_000))
    assert choices(module, world)[0] == first
    expected = 0.25 if first else 0.3  # a reward of 1 every four steps, or of 0.3 at each
    assert module.curve[-1]["train/reward"] == pytest.approx(expected, abs=0.03)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("objective", "best", "rate"), [("average", 0, 3.0), ("reward", 1, 1.0)])
def test_the_average_objective_finds_the_best_rate_where_the_mean_of_ratios_does_not(tmp_path, objective, best, rate):
    world = Rates()
    module = train(tmp_path, world, replace(QUICK, objective=objective, gamma=0.0, total_cycles=2_000, rho_rollouts=3))
    assert choices(module, world) == [best]
    assert module.curve[-1]["train/rho"] == pytest.approx(rate, rel=0.15)


def test_rho_is_the_ratio_of_sums_over_recent_rollouts(tmp_path):
    config = replace(QUICK, rho_rollouts=2, objective="average", lr=0.0, total_cycles=1_000)
    module = train(tmp_path, Rates(), config)
    assert len(module.recent) == 2
    tokens, seconds = (sum(column) for column in zip(*module.recent, strict=True))
    assert module.curve[-1]["train/rho"] == pytest.approx(tokens / seconds)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_policy_and_another_seed_another(tmp_path):
    config = replace(QUICK, total_cycles=800)
    runs = [train(tmp_path / str(i), Bandit(), config, seed) for i, seed in enumerate((0, 0, 1))]
    assert runs[0].curve == runs[1].curve and runs[0].curve != runs[2].curve
    for name, value in runs[0].net.state_dict().items():
        assert torch.equal(value, runs[1].net.state_dict()[name]), name


def test_the_budget_is_spent_to_within_a_step(tmp_path):
    world = Bandit()
    module = train(tmp_path, world, replace(QUICK, total_cycles=1_000))
    assert 1_000 <= module.cycles < 1_000 + world.num_envs
    assert len(world.played) == math.ceil(1_000 / world.num_envs)
    assert [point["cycles"] for point in module.curve] == [256, 512, 768, 1_008]
    assert (tmp_path / "logs" / "csv" / "metrics.csv").read_text().count("\n") == 1 + len(module.curve)


def test_rescaling_the_returns_changes_no_prediction():
    world = Bandit()
    module = module_of(world)
    observations = torch.eye(3)

    def predicted():
        return module.return_mean + module.return_scale * module.net(observations)[1]

    with torch.no_grad():
        module.rescale_critic(torch.tensor([[1.0, 3.0]]))
        assert (module.return_mean, module.return_scale) == (2.0, 1.0)
        before = predicted()
        module.rescale_critic(torch.tensor([[100.0, 300.0]]))
        assert module.return_scale > 10.0
        torch.testing.assert_close(predicted(), before)
        module.rescale_critic(torch.zeros(1, 2))
        assert math.isfinite(module.return_scale) and torch.isfinite(predicted()).all()


def test_training_reaches_every_parameter(tmp_path):
    world = Bandit()
    before = {name: value.clone() for name, value in module_of(world).net.named_parameters()}
    after = train(tmp_path, world, replace(QUICK, total_cycles=500)).net
    for name, value in after.named_parameters():
        assert not torch.equal(value, before[name]), name


@pytest.mark.slow
def test_a_small_target_kl_leaves_a_rollout_early(tmp_path):
    config = replace(QUICK, total_cycles=1_500, entropy=0.01)
    free = train(tmp_path / "free", Bandit(), config)
    held = train(tmp_path / "held", Bandit(), replace(config, target_kl=1e-4))
    assert held.curve[-1]["train/entropy"] > free.curve[-1]["train/entropy"]


def test_a_linear_schedule_warms_up_and_ends_at_zero():
    config = PPOConfig(schedule="linear", warmup_ratio=0.1, lr=1.0)
    rates = [config.lr_at(progress) for progress in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])
    assert PPOConfig(lr=1.0).lr_at(0.9) == 1.0


@pytest.mark.parametrize("wrong", [{"num_steps": 0}, {"gamma": 1.5}, {"schedule": "cosine"}, {"objective": "speed"}])
def test_a_wrong_setting_is_named(wrong):
    with pytest.raises(ConfigError, match=f"ppo.{next(iter(wrong))}"):
        PPOConfig(**wrong)


@pytest.mark.slow
def test_ctrl_c_is_raised_and_works_again_afterwards(tmp_path):
    class Interrupted(Bandit):
        def play(self, actions):
            if len(self.played) == 20:
                raise KeyboardInterrupt
            return super().play(actions)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Interrupted())
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
def test_only_progress_is_printed(tmp_path, capfd, monkeypatch):
    for name in ("LINE_S", "FIRST_LINE_S"):
        monkeypatch.setattr(f"drafterforge.config.progress.{name}", 0.005)
    module = module_of(Bandit(), replace(QUICK, total_cycles=1_000))
    fit_ppo(module, tmp_path / "quiet", 0, progress=False)
    assert capfd.readouterr() == ("", "")
    fit_ppo(module, tmp_path / "shown", 0)
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert (
        out == ""
        and lines
        and all(re.match(r"\d{4}-\d\d-\d\d [\d:]{8} training: \d+/1000 after ", line) for line in lines)
    )
    assert any("tokens_per_s 1, entropy" in line for line in lines)
