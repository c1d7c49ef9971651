"""The Lightning module that trains a scheduler's policy by PPO.

Axes: T steps of a rollout, E environments, N = T x E decisions, O observation, A actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.replay.environment import VectorEnvironment
from drafterforge.schedulers.nets import ActorCritic, act
from drafterforge.training.ppo import PPOTerms, explained_variance, gae, log_probs_of, ppo_loss, standardised


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO."""

    total_cycles: int = 400_000  # cycles that the environments play
    total_decisions: int | None = None  # the budget in decisions instead
    num_steps: int = 64  # decisions per environment and rollout
    batch_size: int = 32  # decisions per optimiser step
    epochs: int = 4  # passes over each rollout
    lr: float = 3e-4
    schedule: str = "constant"  # constant | linear: warm-up, then down to 0 at the end of the budget
    warmup_ratio: float = 0.01  # share of the budget, for schedule=linear
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value_weight: float = 0.5
    entropy: float = 0.01  # weight of the entropy; 0.1 is max-entropy PPO
    grad_clip: float = 0.5  # largest norm of the gradient; 0: none
    normalise_advantages: bool = True  # in each minibatch
    target_kl: float | None = None  # end a rollout's updates when the KL divergence exceeds 1.5 times this
    objective: str = "average"  # average: tokens - rho x seconds, for tokens per second | reward: the environment's
    rho_rollouts: int = 10  # recent rollouts that rho, their tokens per second, is taken over

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("total_cycles", "num_steps", "batch_size", "epochs", "rho_rollouts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ppo.{name} must be >= 1, got {getattr(self, name)}")
        if self.total_decisions is not None and self.total_decisions < 1:
            raise ConfigError(f"ppo.total_decisions must be >= 1, got {self.total_decisions}")
        for name in ("gamma", "lam", "warmup_ratio"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"ppo.{name} must lie in [0, 1], got {getattr(self, name)}")
        for name, choices in (("schedule", ("constant", "linear")), ("objective", ("average", "reward"))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"ppo.{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")

    def lr_at(self, progress: float) -> float:
        """The learning rate after a share `progress` of the budget."""
        if self.schedule == "constant":
            return self.lr
        if progress < self.warmup_ratio:
            return self.lr * progress / self.warmup_ratio
        return self.lr * (1 - progress) / max(1 - self.warmup_ratio, 1e-8)


@dataclass(frozen=True)
class Rollout:
    """T steps of E environments, and the state after them."""

    observations: Tensor  # [T + 1, E, O]
    masks: Tensor  # [T + 1, E, A]
    actions: Tensor  # [T, E]
    rewards: Tensor  # [T, E], the environment's
    dones: Tensor  # [T, E]
    tokens: Tensor  # [T, E]
    seconds: Tensor  # [T, E]


@dataclass(frozen=True)
class Samples:
    """Decisions of a rollout, steps and environments flattened."""

    observations: Tensor  # [N, O]
    masks: Tensor  # [N, A]
    actions: Tensor  # [N]
    log_probs: Tensor  # [N]
    advantages: Tensor  # [N]
    returns: Tensor  # [N], in the critic's units


class PPOModule(LightningModule):
    """Each training step plays one rollout with the current policy and optimises on it.

    The critic's targets are returns scaled to mean 0 and deviation 1, so rewards may have any size.
    """

    def __init__(self, net: ActorCritic, environment: VectorEnvironment, config: PPOConfig) -> None:
        super().__init__()
        assert (net.observation_size, net.num_actions) == (environment.observation_size, environment.num_actions)
        self.automatic_optimization = False
        self.net, self.environment, self.config = net, environment, config
        self.register_buffer("return_moments", torch.zeros(2, dtype=torch.float64), persistent=False)
        self.return_mean, self.return_scale, self.num_rollouts = 0.0, 1.0, 0
        self.generator = torch.Generator()  # the only randomness besides the environment's
        self.curve: list[dict[str, float]] = []
        self.cycles, self.decisions = 0, 0

    @property
    def spent(self) -> int:
        """The spent part of the budget, in its unit."""
        return self.cycles if self.config.total_decisions is None else self.decisions

    @property
    def budget(self) -> int:
        """Cycles, or decisions, that end the training."""
        return self.config.total_decisions or self.config.total_cycles

    def on_fit_start(self) -> None:
        """Start the environments and the budget."""
        self.observations, self.masks = self.environment.reset()
        self.recent: deque[tuple[float, float]] = deque(maxlen=self.config.rho_rollouts)
        self.cycles, self.decisions, self.curve = 0, 0, []

    def train_dataloader(self) -> Iterable[int]:
        """An endless loader; the budget ends the training."""
        return repeat(0)

    def training_step(self, batch: int, index: int) -> None:
        """One rollout, and `epochs` passes over it."""
        config, before = self.config, self.spent
        rollout = self.collect()
        lr = config.lr_at(min(1.0, (before + self.spent) / 2 / self.budget))
        tokens, seconds = rollout.tokens.sum().item(), rollout.seconds.sum().item()
        self.recent.append((tokens, seconds))
        rho = sum(t for t, _ in self.recent) / max(sum(s for _, s in self.recent), 1e-12)
        samples, explained = self.samples_of(rollout, rho)
        terms = self.optimise(samples, lr)
        # read at once: every reading waits for the device
        reward, explained, *values = torch.stack((rollout.rewards.mean(), explained, *vars(terms).values())).tolist()
        figures = {
            "reward": reward,
            "tokens_per_s": tokens / max(seconds, 1e-12),
            "rho": rho,
            "explained_variance": explained,
            "lr": lr,
            **dict(zip(vars(terms), values, strict=True)),
        }
        self.curve.append({"cycles": self.cycles} | {f"train/{name}": value for name, value in figures.items()})
        for logger in self.loggers:  # `log_dict` takes as long as an optimiser step
            logger.log_metrics(self.curve[-1], step=len(self.curve))
        self.trainer.should_stop = self.spent >= self.budget

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Play `num_steps` steps, or fewer where the budget ends."""
        environment, num_steps = self.environment, self.config.num_steps
        shape = (num_steps + 1, environment.num_envs)
        observations = torch.empty(*shape, environment.observation_size, device=self.device)
        masks = torch.empty(*shape, environment.num_actions, dtype=torch.bool, device=self.device)
        actions, steps = [], []
        for t in range(num_steps + 1):
            # copied: the environment may fill the same arrays again
            observations[t], masks[t] = torch.from_numpy(self.observations), torch.from_numpy(self.masks)
            if t == num_steps or self.spent >= self.budget:
                break
            logits = self.net.logits(observations[t], masks[t])
            actions.append(act(logits.cpu(), 1.0, self.generator))
            step = environment.step(actions[-1].numpy())
            self.observations, self.masks = step.observations, step.masks
            self.cycles += int(step.cycles.sum())
            self.decisions += environment.num_envs
            # copied for the same reason
            steps.append([np.array(x) for x in (step.rewards, step.dones, step.tokens, step.seconds)])
        rewards, dones, tokens, seconds = (np.stack(column) for column in zip(*steps, strict=True))
        return Rollout(
            observations[: t + 1],
            masks[: t + 1],
            torch.stack(actions).to(self.device),
            torch.from_numpy(rewards).float().to(self.device),
            torch.from_numpy(dones).to(self.device),
            torch.from_numpy(tokens).double(),
            torch.from_numpy(seconds).double(),
        )

    @torch.no_grad()
    def samples_of(self, rollout: Rollout, rho: float) -> tuple[Samples, Tensor]:
        """The rollout's decisions with advantages and returns, and the critic's explained variance."""
        config, actions = self.config, rollout.actions
        observations, masks = rollout.observations.flatten(0, 1), rollout.masks.flatten(0, 1)
        logits, values = self.net(observations, masks)
        values = (self.return_mean + self.return_scale * values).view(rollout.masks.shape[:2])
        rewards = rollout.rewards
        if config.objective == "average":
            rewards = (rollout.tokens - rho * rollout.seconds).to(rewards)
        advantages, returns = gae(rewards, values[:-1], values[-1], rollout.dones, config.gamma, config.lam)
        self.rescale_critic(returns)
        count = actions.numel()
        samples = Samples(
            observations[:count],
            masks[:count],
            actions.flatten(),
            log_probs_of(logits[:count], actions.flatten()),
            advantages.flatten(),
            (returns.flatten() - self.return_mean) / self.return_scale,
        )
        return samples, explained_variance(values[:-1], returns)

    def rescale_critic(self, returns: Tensor) -> None:
        """Move the critic's units to the returns [T, E] and keep its predictions (PopArt, arXiv 1602.07714)."""
        self.num_rollouts += 1
        moments = torch.stack((returns.double().mean(), returns.double().square().mean()))
        self.return_moments.lerp_(moments, max(1 / self.num_rollouts, 0.05))
        mean, square = self.return_moments.tolist()
        deviation = max(square - mean**2, 0.0) ** 0.5
        scale = max(deviation, 1e-4 * abs(mean)) or 1.0
        if self.num_rollouts > 1:  # predictions of an untrained critic are not kept
            head = self.net.critic[-1]
            head.weight.mul_(self.return_scale / scale)
            head.bias.mul_(self.return_scale).add_(self.return_mean - mean).div_(scale)
        self.return_mean, self.return_scale = mean, scale

    def optimise(self, samples: Samples, lr: float) -> PPOTerms:
        """Optimise on shuffled minibatches of equal size; returns the mean of their terms."""
        config = self.config
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.param_groups[0]["lr"] = lr
        parameters = list(self.net.parameters())
        count = samples.actions.numel()
        num_batches = max(1, round(count / config.batch_size))
        history = []
        for _ in range(config.epochs):
            order = torch.randperm(count, generator=self.generator).to(self.device)
            for rows in order.tensor_split(num_batches):
                advantages = samples.advantages[rows]
                logits, values = self.net(samples.observations[rows], samples.masks[rows])
                loss, terms = ppo_loss(
                    logits,
                    values,
                    samples.actions[rows],
                    samples.log_probs[rows],
                    standardised(advantages) if config.normalise_advantages else advantages,
                    samples.returns[rows],
                    clip=config.clip,
                    value_weight=config.value_weight,
                    entropy_weight=config.entropy,
                )
                history.append(terms)
                if config.target_kl is not None and terms.approx_kl.item() > 1.5 * config.target_kl:
                    return PPOTerms.mean(history)
                optimizer.zero_grad()
                loss.backward()
                if config.grad_clip:
                    torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip)
                optimizer.step()
        return PPOTerms.mean(history)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam; each rollout sets its learning rate."""
        return torch.optim.Adam(self.net.parameters(), lr=self.config.lr, eps=1e-5, fused=True)
