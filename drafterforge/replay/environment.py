"""Recorded answers as environments, in which PPO plays: many at once, every step a table lookup.

Axes: E environments, R roots, A actions, O observation, D levels, V sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from drafterforge.errors import ConfigError
from drafterforge.replay.scheduler_actions import (
    actions_by_size,
    depth_observations,
    size_observations,
    sizes_allowed,
)
from drafterforge.replay.table import OutcomeTable
from drafterforge.replay.trace import Traces
from drafterforge.schedulers.observation import level_size, pool_size

REWARDS = ("throughput", "accept_length", "time")
TIME_UNIT = 0.01  # seconds in which throughput is counted, as LTD does


@dataclass(frozen=True)
class Step:
    """What E environments answer to E actions."""

    observations: np.ndarray  # float32 [E, O]; after the end of an episode, the first of the next
    masks: np.ndarray  # bool [E, A], the actions allowed there
    rewards: np.ndarray  # float32 [E]
    dones: np.ndarray  # bool [E], whether this step ended an episode
    tokens: np.ndarray  # float [E], emitted during the step
    seconds: np.ndarray  # float [E], that it took
    cycles: np.ndarray  # int [E], played during the step


class VectorEnvironment(Protocol):
    """Environments that start over by themselves."""

    num_envs: int
    observation_size: int
    num_actions: int

    def reset(self) -> tuple[np.ndarray, np.ndarray]:
        """Start over: observations float32 [E, O] and masks bool [E, A]."""

    def step(self, actions: np.ndarray) -> Step:
        """Play actions int64 [E]."""


class AnswerEnvironment(ABC):
    """E positions in recorded answers; at an answer's end an environment goes on with another, drawn at random."""

    observation_size: int
    num_actions: int

    def __init__(self, table: OutcomeTable, num_envs: int, reward: str, seed: int) -> None:
        """reward: throughput (mean tokens per 10 ms of the step's cycles), accept_length or time."""
        if reward not in REWARDS:
            raise ConfigError(f"reward must be one of {', '.join(REWARDS)}, got {reward!r}")
        self.table, self.num_envs, self.reward = table, num_envs, reward
        self.rng = np.random.default_rng(seed)
        self.playable = np.flatnonzero(np.diff(table.starts) > 0)
        self.rows = np.zeros(num_envs, dtype=np.int64)

    def begin(self, envs: np.ndarray) -> None:
        """Put some environments at the first root of an answer."""
        self.rows[envs] = self.table.starts[self.rng.choice(self.playable, size=len(envs))]

    def reset(self) -> tuple[np.ndarray, np.ndarray]:
        """Start over."""
        self.begin(np.arange(self.num_envs))
        return self.observations(), self.masks()

    @abstractmethod
    def observations(self) -> np.ndarray:
        """float32 [E, O]."""

    @abstractmethod
    def masks(self) -> np.ndarray:
        """bool [E, A]."""

    @abstractmethod
    def step(self, actions: np.ndarray) -> Step:
        """Play actions [E]."""

    def rewarded(self, tokens: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """Reward of a cycle of each environment, [E]."""
        if self.reward == "accept_length":
            return tokens.astype(float)
        return -seconds / TIME_UNIT if self.reward == "time" else tokens / (seconds / TIME_UNIT)

    def arrived(self) -> np.ndarray:
        """Environments whose answer has just ended start another, [E] bool."""
        over = self.rows >= self.ends
        if over.any():
            self.begin(np.flatnonzero(over))
        return over


class ShapeEnvironment(AnswerEnvironment):
    """Re-SpS: a whole shape for the next cycles; an episode is an answer."""

    def __init__(
        self,
        table: OutcomeTable,
        observations: np.ndarray,
        num_envs: int = 16,
        hold_cycles: int = 10,
        reward: str = "throughput",
        seed: int = 0,
    ) -> None:
        """observations: float32 [R, O].  hold_cycles: for which an action is kept; the reward is their mean."""
        super().__init__(table, num_envs, reward, seed)
        self.seen, self.hold_cycles = observations, hold_cycles
        self.observation_size, self.num_actions = observations.shape[1], len(table.grid)
        self.allowed = np.ones((num_envs, self.num_actions), dtype=bool)
        self.flat_tokens, self.flat_seconds = table.tokens.ravel(), table.seconds.ravel()

    def observations(self) -> np.ndarray:
        """At each root."""
        return np.take(self.seen, self.rows, axis=0)

    def masks(self) -> np.ndarray:
        """Every action of a grid can be asked for."""
        return self.allowed

    def step(self, actions: np.ndarray) -> Step:
        """Play up to `hold_cycles` cycles with each action."""
        rows, ends = self.rows, self.table.ends[self.rows]
        tokens, seconds, rewards = (np.zeros(self.num_envs) for _ in range(3))
        cycles = np.zeros(self.num_envs, dtype=np.int64)
        envs = np.arange(self.num_envs)
        for _ in range(self.hold_cycles):
            at = rows[envs] * self.num_actions + actions[envs]
            emitted, spent = self.flat_tokens[at], self.flat_seconds[at]
            rows[envs] += emitted
            tokens[envs] += emitted
            seconds[envs] += spent
            rewards[envs] += self.rewarded(emitted, spent)
            cycles[envs] += 1
            envs = envs[rows[envs] < ends[envs]]
            if not len(envs):
                break
        self.ends = ends
        dones = self.arrived()
        return Step(
            self.observations(), self.allowed, (rewards / cycles).astype(np.float32), dones, tokens, seconds, cycles
        )


class DepthEnvironment(AnswerEnvironment):
    """LTD's depth policy: after every level, 1 drafts another and 0 verifies; an episode is a cycle."""

    def __init__(
        self,
        table: OutcomeTable,
        traces: Traces,
        drafter: int,
        actions: np.ndarray,
        num_envs: int = 64,
        reward: str = "throughput",
        seed: int = 0,
    ) -> None:
        """table: of a grid with one width.  actions: of cycles at each root that end with each depth, [R, D]."""
        super().__init__(table, num_envs, reward, seed)
        self.scores = traces.rows["scores"][drafter]
        self.top_k, self.depth = traces.spec.score_top_k, max(table.grid.depths)
        self.lengths, self.limits = traces.positions, np.minimum(traces.levels, self.depth)
        self.actions = actions
        self.levels = np.ones(num_envs, dtype=np.int64)
        self.observation_size, self.num_actions = level_size(self.top_k) + 2, 2

    def begin(self, envs: np.ndarray) -> None:
        """The first level is always drafted."""
        super().begin(envs)
        self.levels[envs] = 1

    def observations(self) -> np.ndarray:
        """The newest level."""
        return depth_observations(self.scores[self.rows], self.levels, self.lengths[self.rows], self.top_k)

    def masks(self) -> np.ndarray:
        """No level beyond the deepest that could count."""
        return np.stack((np.ones(self.num_envs, dtype=bool), self.levels < self.limits[self.rows]), axis=1)

    def step(self, actions: np.ndarray) -> Step:
        """Draft a level more, or end the cycle; ends without a choice where no level could follow."""
        going = (actions == 1) & (self.levels < self.limits[self.rows])
        self.levels += going
        stop = ~going
        tokens, seconds = np.zeros(self.num_envs), np.zeros(self.num_envs)
        at = self.rows[stop]
        index = at, self.actions[at, self.levels[stop] - 1]
        tokens[stop], seconds[stop] = self.table.tokens[index], self.table.seconds[index]
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        rewards[stop] = self.rewarded(tokens[stop], seconds[stop])
        self.ends = self.table.ends[self.rows]
        self.rows[stop] += tokens[stop].astype(np.int64)
        self.levels[stop] = 1
        self.arrived()
        return Step(self.observations(), self.masks(), rewards, stop, tokens, seconds, stop.astype(np.int64))


class SizeEnvironment(AnswerEnvironment):
    """LTD's size policy: how many of a drafted tree's candidates are verified; an episode is a cycle."""

    def __init__(
        self,
        table: OutcomeTable,
        traces: Traces,
        drafter: int,
        depths: np.ndarray | None,
        num_envs: int = 64,
        reward: str = "throughput",
        seed: int = 0,
    ) -> None:
        """depths: levels that each root's tree is drafted with, [R]; None: drawn anew for every cycle."""
        super().__init__(table, num_envs, reward, seed)
        self.scores = traces.rows["scores"][drafter]
        self.top_k, self.depth = traces.spec.score_top_k, max(table.grid.depths)
        self.lengths, self.limits = traces.positions, np.clip(traces.levels, 1, self.depth)
        self.fixed, self.index = depths, actions_by_size(table.grid)
        self.levels = np.ones(num_envs, dtype=np.int64)
        self.observation_size = pool_size(self.top_k, self.depth) + 2
        self.num_actions = self.index.shape[1]

    def begin(self, envs: np.ndarray) -> None:
        """A drafted tree at each root."""
        super().begin(envs)
        self._draft(envs)

    def _draft(self, envs: np.ndarray) -> None:
        limits = self.limits[self.rows[envs]]
        self.levels[envs] = self.rng.integers(1, limits + 1) if self.fixed is None else self.fixed[self.rows[envs]]

    def observations(self) -> np.ndarray:
        """All candidates."""
        return size_observations(self.scores[self.rows], self.levels, self.lengths[self.rows], self.top_k, self.depth)

    def masks(self) -> np.ndarray:
        """Sizes that the tree's candidates can fill, and the smallest."""
        return sizes_allowed(self.table.grid, self.levels)

    def step(self, actions: np.ndarray) -> Step:
        """Verify; every step is a cycle."""
        index = self.rows, self.index[self.levels - 1, actions]
        tokens, seconds = self.table.tokens[index].astype(float), self.table.seconds[index].astype(float)
        self.ends = self.table.ends[self.rows]
        self.rows += tokens.astype(np.int64)
        everywhere = np.ones(self.num_envs, dtype=bool)
        inside = self.rows < self.ends
        self.arrived()
        self._draft(np.flatnonzero(inside))
        rewards = self.rewarded(tokens, seconds).astype(np.float32)
        return Step(
            self.observations(), self.masks(), rewards, everywhere, tokens, seconds, everywhere.astype(np.int64)
        )
