"""Selectors of `drafterforge.selectors`, vectorised over simulations with different seeds.

Axes: S seeds, N drafters, K levels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafterforge.selectors.estimators import expected_length, length_loss
from drafterforge.selectors.exp3 import exp3_probs
from drafterforge.selectors.learners.adanormalhedge import adanormalhedge_probs
from drafterforge.selectors.learners.hedge import hedge_probs, hedge_rate
from drafterforge.selectors.learners.normalhedge import normalhedge_rows
from drafterforge.selectors.learners.squint import squint_probs
from drafterforge.selectors.ucb import ucb1_scores, ucbspec_scores

import numpy as np

DEPTH, CYCLES = 5, 400  # of a simulation
DELAY = 2  # cycles until a learner sees the losses of a cycle


class SimulatedSelector:
    """Chooses the drafters of S simulations at once."""

    def reset(self, seeds: int, num_drafters: int) -> None:
        self.shape = seeds, num_drafters
        self.rows = np.arange(seeds)
        self.rounds = 0

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """The drafters of the next cycle, [S]."""
        raise NotImplementedError

    def observe(self, drafters: np.ndarray, length: np.ndarray, gamma: np.ndarray) -> None:
        """Learn from a cycle: drafters and accept lengths [S], acceptance probabilities of all drafters [S, N, K]."""

    def sample(self, probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Drafters [S], drawn from distributions [S, N]."""
        ends = probs.cumsum(axis=1)
        return (ends <= rng.random((len(ends), 1)) * ends[:, -1:]).sum(axis=1)


class Uniform(SimulatedSelector):
    """Chooses any drafter."""

    def select(self, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, self.shape[1], self.shape[0])


class Fixed(SimulatedSelector):
    """Always chooses the given drafters, [S]: an oracle, if these are the best."""

    def __init__(self, drafters: np.ndarray) -> None:
        self.drafters = drafters

    def select(self, rng: np.random.Generator) -> np.ndarray:
        return self.drafters


@dataclass
class Regrets:
    """Sums over rounds of regrets, of their absolute values and of their squares, each [S, N]."""

    sums: np.ndarray
    spreads: np.ndarray
    squares: np.ndarray
    rounds: int


class FullInformation(SimulatedSelector):
    """A learner that sees the losses of all drafters, late; regrets are against the distribution that was played."""

    def __init__(
        self, distribution: Callable[[Regrets], np.ndarray], draw: str = "sample", discount: float = 1.0
    ) -> None:
        self.distribution, self.draw, self.discount = distribution, draw, discount

    def reset(self, seeds: int, num_drafters: int) -> None:
        super().reset(seeds, num_drafters)
        self.regrets = Regrets(*(np.zeros(self.shape) for _ in range(3)), 0)
        self.delayed: deque[tuple[np.ndarray, np.ndarray]] = deque()

    def select(self, rng: np.random.Generator) -> np.ndarray:
        self.probs = self.distribution(self.regrets)
        return self.probs.argmax(axis=1) if self.draw == "argmax" else self.sample(self.probs, rng)

    def observe(self, drafters: np.ndarray, length: np.ndarray, gamma: np.ndarray) -> None:
        self.delayed.append((self.probs, length_loss(expected_length(gamma, gamma), gamma.shape[-1])))
        if len(self.delayed) <= DELAY:
            return
        probs, losses = self.delayed.popleft()
        new = (probs * losses).sum(axis=1, keepdims=True) - losses
        old, discount = self.regrets, self.discount
        self.regrets = Regrets(
            discount * old.sums + new,
            discount * old.spreads + np.abs(new),
            discount * old.squares + new**2,
            old.rounds + 1,
        )


class Bandit(SimulatedSelector):
    """Sees a reward in [0, 1] of the played drafter: `efficiency`, or mean acceptance probability, `divergence`."""

    reward = "efficiency"

    def reset(self, seeds: int, num_drafters: int) -> None:
        super().reset(seeds, num_drafters)
        self.sums, self.counts = np.zeros(self.shape), np.zeros(self.shape)

    def observe(self, drafters: np.ndarray, length: np.ndarray, gamma: np.ndarray) -> None:
        divergence = gamma[self.rows, drafters].mean(axis=1)
        reward = divergence if self.reward == "divergence" else (length - 1) / gamma.shape[-1]
        self.learn(drafters, reward)
        self.rounds += 1

    def learn(self, drafters: np.ndarray, reward: np.ndarray) -> None:
        """Count drafters and rewards, [S]."""
        self.sums[self.rows, drafters] += reward
        self.counts[self.rows, drafters] += 1

    @property
    def means(self) -> np.ndarray:
        """Mean rewards, [S, N]."""
        return self.sums / np.maximum(self.counts, 1.0)


class UCB1(Bandit):
    """UCB1, and MetaSD-UCB with its reward."""

    def __init__(self, c: float = 1.0, reward: str = "efficiency") -> None:
        self.c, self.reward = c, reward

    def select(self, rng: np.random.Generator) -> np.ndarray:
        return ucb1_scores(self.means, self.counts, self.rounds, self.c).argmax(axis=1)


class UCBSpec(Bandit):
    """UCBSpec; `scale` multiplies its confidence radius."""

    def __init__(self, scale: float = 1.0, delta: float = 0.05) -> None:
        self.scale, self.delta = scale, delta

    def select(self, rng: np.random.Generator) -> np.ndarray:
        means = 1.0 + DEPTH * self.means
        return ucbspec_scores(means, self.counts, self.rounds, DEPTH, self.delta, self.scale).argmax(axis=1)


class Thompson(Bandit):
    """Thompson sampling with fractional rewards."""

    def select(self, rng: np.random.Generator) -> np.ndarray:
        return rng.beta(1.0 + self.sums, 1.0 + self.counts - self.sums).argmax(axis=1)


class Exp3(Bandit):
    """EXP3Spec, and MetaSD-EXP3 with its reward; `sums` are estimated losses, `scale` multiplies the rate."""

    def __init__(self, scale: float = 1.0, reward: str = "efficiency") -> None:
        self.scale, self.reward = scale, reward

    def select(self, rng: np.random.Generator) -> np.ndarray:
        self.probs = exp3_probs(self.sums, self.rounds, self.scale)
        return self.sample(self.probs, rng)

    def learn(self, drafters: np.ndarray, reward: np.ndarray) -> None:
        self.sums[self.rows, drafters] += (1.0 - reward) / self.probs[self.rows, drafters]


def normalhedge(draw: str = "sample", discount: float = 1.0) -> SimulatedSelector:
    """NormalHedge."""
    return FullInformation(lambda regrets: normalhedge_rows(regrets.sums), draw, discount)


def hedge(horizon: int = CYCLES) -> SimulatedSelector:
    """Hedge with the best rate for `horizon` rounds."""
    return FullInformation(lambda r: hedge_probs(r.sums, hedge_rate(r.sums.shape[1], horizon)))


SELECTORS: dict[str, Callable[[], SimulatedSelector]] = {
    "NormalHedge sample": normalhedge,
    "NormalHedge argmax": lambda: normalhedge("argmax"),
    "FTL argmax": lambda: FullInformation(lambda r: np.eye(r.sums.shape[1])[r.sums.argmax(axis=1)], "argmax"),
    "AdaNormalHedge": lambda: FullInformation(lambda r: adanormalhedge_probs(r.sums, r.spreads)),
    "Squint": lambda: FullInformation(lambda r: squint_probs(r.sums, r.squares)),
    "Hedge": hedge,
    "Thompson": Thompson,
    "UCBSpec": UCBSpec,
    "UCB1": UCB1,
    "MetaSD-UCB": lambda: UCB1(reward="divergence"),
    "EXP3Spec": Exp3,
    "random": Uniform,
}
CONSTANTS: dict[str, tuple[Sequence[float], Callable[[float], SimulatedSelector]]] = {  # that tuning tries
    "UCBSpec": ((0.02, 0.05, 0.1, 0.2, 0.3), lambda scale: UCBSpec(scale)),
    "UCB1": ((0.02, 0.05, 0.1, 0.2, 0.3), lambda c: UCB1(c)),
    "MetaSD-UCB": ((0.02, 0.05, 0.1, 0.2, 0.3), lambda beta: UCB1(beta, "divergence")),
    "EXP3Spec": ((2.0, 4.0, 8.0, 16.0, 32.0), lambda scale: Exp3(scale)),
}
