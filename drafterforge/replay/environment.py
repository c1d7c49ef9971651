"""Recorded answers as vectorized environments for PPO; every step is a table lookup.

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
TIME_UNIT = 0.01  # seconds per unit of time in rewards, as in LTD


@dataclass(frozen=True)
class Step:
    """Result of E actions in E environments."""

    observations: np.ndarray  # float32 [E, O]; after the end of an episode, the first of the next
    masks: np.ndarray  # bool [E, A], allowed actions
    rewards: np.ndarray  # float32 [E]
    dones: np.ndarray  # bool [E], whether this step ended an episode
    tokens: np.ndarray  # float [E], emitted in the step
    seconds: np.ndarray  # float [E], duration of the step
    cycles: np.ndarray  # int [E], in the step


class VectorEnvironment(Protocol):
    """Environments that reset themselves at the end of an episode."""

    num_envs: int
    observation_size: int
    num_actions: int

    def reset(self) -> tuple[np.ndarray, np.ndarray]:
        """Reset all environments: observations float32 [E, O] and masks bool [E, A]."""

    def step(self, actions: np.ndarray) -> Step:
        """Play actions int64 [E]."""


def rewards_of(reward: str, tokens: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Rewards of cycles, [n], by their tokens and seconds, [n]."""
    if reward == "accept_length":
        return tokens.astype(float)
    return -seconds / TIME_UNIT if reward == "time" else tokens / (seconds / TIME_UNIT)


class AnswerEnvironment(ABC):
    """E positions in recorded answers; at the end of an answer, an environment continues with a random other one."""

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
        """Reward of one cycle in each environment, [E]."""
        return rewards_of(self.reward, tokens, seconds)

    def restart_finished(self) -> np.ndarray:
        """Start another answer where one has ended; returns where, bool [E]."""
        is_over = self.rows >= self.ends
        if is_over.any():
            self.begin(np.flatnonzero(is_over))
        return is_over


class ShapeEnvironment(AnswerEnvironment):
    """Re-SpS: an action is the tree of the next cycles; an episode is an answer."""

    def __init__(
        self,
        table: OutcomeTable,
        observations: np.ndarray,
        num_envs: int = 16,
        hold_cycles: int = 10,
        reward: str = "throughput",
        seed: int = 0,
    ) -> None:
        """observations: float32 [R, O].  hold_cycles: cycles for which an action is held; the reward is their mean."""
        super().__init__(table, num_envs, reward, seed)
        self.by_root, self.hold_cycles = observations, hold_cycles
        self.observation_size, self.num_actions = observations.shape[1], len(table.grid)
        self.allowed = np.ones((num_envs, self.num_actions), dtype=bool)
        self.flat_tokens, self.flat_seconds = table.tokens.ravel(), table.seconds.ravel()

    def observations(self) -> np.ndarray:
        return np.take(self.by_root, self.rows, axis=0)

    def masks(self) -> np.ndarray:
        return self.allowed

    def step(self, actions: np.ndarray) -> Step:
        """Play up to `hold_cycles` cycles with each action [E]."""
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
        dones = self.restart_finished()
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
        super().begin(envs)
        self.levels[envs] = 1  # the first level is always drafted

    def observations(self) -> np.ndarray:
        return depth_observations(self.scores[self.rows], self.levels, self.lengths[self.rows], self.top_k)

    def masks(self) -> np.ndarray:
        return np.stack((np.ones(self.num_envs, dtype=bool), self.levels < self.limits[self.rows]), axis=1)

    def step(self, actions: np.ndarray) -> Step:
        """Draft another level or end the cycle; at the deepest level that can count, the cycle ends."""
        goes_on = (actions == 1) & (self.levels < self.limits[self.rows])
        self.levels += goes_on
        stop = ~goes_on
        tokens, seconds = np.zeros(self.num_envs), np.zeros(self.num_envs)
        at = self.rows[stop]
        index = at, self.actions[at, self.levels[stop] - 1]
        tokens[stop], seconds[stop] = self.table.tokens[index], self.table.seconds[index]
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        rewards[stop] = self.rewarded(tokens[stop], seconds[stop])
        self.ends = self.table.ends[self.rows]
        self.rows[stop] += tokens[stop].astype(np.int64)
        self.levels[stop] = 1
        self.restart_finished()
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
        """depths: drafted levels at each root, [R]; None: random in every cycle."""
        super().__init__(table, num_envs, reward, seed)
        self.scores = traces.rows["scores"][drafter]
        self.top_k, self.depth = traces.spec.score_top_k, max(table.grid.depths)
        self.lengths, self.limits = traces.positions, np.clip(traces.levels, 1, self.depth)
        self.fixed, self.index = depths, actions_by_size(table.grid)
        self.levels = np.ones(num_envs, dtype=np.int64)
        self.observation_size = pool_size(self.top_k, self.depth) + 2
        self.num_actions = self.index.shape[1]

    def begin(self, envs: np.ndarray) -> None:
        super().begin(envs)
        self._draft(envs)

    def _draft(self, envs: np.ndarray) -> None:
        limits = self.limits[self.rows[envs]]
        self.levels[envs] = self.rng.integers(1, limits + 1) if self.fixed is None else self.fixed[self.rows[envs]]

    def observations(self) -> np.ndarray:
        return size_observations(self.scores[self.rows], self.levels, self.lengths[self.rows], self.top_k, self.depth)

    def masks(self) -> np.ndarray:
        return sizes_allowed(self.table.grid, self.levels)

    def step(self, actions: np.ndarray) -> Step:
        """Verify trees of the chosen sizes; every step is a cycle."""
        index = self.rows, self.index[self.levels - 1, actions]
        tokens, seconds = self.table.tokens[index].astype(float), self.table.seconds[index].astype(float)
        self.ends = self.table.ends[self.rows]
        self.rows += tokens.astype(np.int64)
        dones = np.ones(self.num_envs, dtype=bool)
        is_inside = self.rows < self.ends
        self.restart_finished()
        self._draft(np.flatnonzero(is_inside))
        rewards = self.rewarded(tokens, seconds).astype(np.float32)
        return Step(self.observations(), self.masks(), rewards, dones, tokens, seconds, dones.astype(np.int64))
