"""Recorded answers as environments: many play at once, every step a table lookup.

Axes: E environments, R roots, A actions, O observation, D levels, V sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from drafterforge.errors import ConfigError
from drafterforge.replay.environment import Step
from drafterforge.replay.table import OutcomeTable
from drafterforge.replay.trace import Traces
from drafterforge.schedulers.observation import level_size, of_level, pool_size

REWARDS = ("throughput", "accept_length", "time")
TIME_UNIT = 0.01  # seconds in which throughput is counted, as LTD does


class AnswerEnvironment(ABC):
    """E places in recorded answers; who reaches the end goes on with an answer drawn anew."""

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

    def begin(self, places: np.ndarray) -> None:
        """Put some environments at the first root of an answer."""
        self.rows[places] = self.table.starts[self.rng.choice(self.playable, size=len(places))]

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
        every: int = 10,
        reward: str = "throughput",
        seed: int = 0,
    ) -> None:
        """observations: float32 [R, O].  every: cycles an action is kept; the reward is their mean."""
        super().__init__(table, num_envs, reward, seed)
        self.seen, self.every = observations, every
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
        """Play up to `every` cycles with each action."""
        rows, ends = self.rows, self.table.ends[self.rows]
        tokens, seconds, rewards = (np.zeros(self.num_envs) for _ in range(3))
        cycles = np.zeros(self.num_envs, dtype=np.int64)
        places = np.arange(self.num_envs)
        for _ in range(self.every):
            at = rows[places] * self.num_actions + actions[places]
            emitted, spent = self.flat_tokens[at], self.flat_seconds[at]
            rows[places] += emitted
            tokens[places] += emitted
            seconds[places] += spent
            rewards[places] += self.rewarded(emitted, spent)
            cycles[places] += 1
            places = places[rows[places] < ends[places]]
            if not len(places):
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
        sizes: np.ndarray,
        num_envs: int = 64,
        reward: str = "throughput",
        seed: int = 0,
    ) -> None:
        """table: of a grid with one width, see `ltd_index`.  sizes: places among its sizes that a tree of each depth is
        verified with, [R, D].
        """
        super().__init__(table, num_envs, reward, seed)
        self.scores = traces.rows["scores"][drafter]
        self.top_k, self.depth = traces.spec.score_top_k, max(table.grid.depths)
        self.lengths, self.limits = traces.positions, np.minimum(traces.levels, self.depth)
        self.actions = ltd_index(table)[np.arange(self.depth)[None, :], sizes]  # [R, D]
        self.levels = np.ones(num_envs, dtype=np.int64)
        self.observation_size, self.num_actions = level_size(self.top_k) + 2, 2

    def begin(self, places: np.ndarray) -> None:
        """The first level is always drafted."""
        super().begin(places)
        self.levels[places] = 1

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
        chosen = self.actions[at, self.levels[stop] - 1]
        tokens[stop], seconds[stop] = self.table.tokens[at, chosen], self.table.seconds[at, chosen]
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
        self.fixed, self.index = depths, ltd_index(table)
        self.levels = np.ones(num_envs, dtype=np.int64)
        self.observation_size = pool_size(self.top_k, self.depth) + 2
        self.num_actions = self.index.shape[1]

    def begin(self, places: np.ndarray) -> None:
        """A drafted tree at each root."""
        super().begin(places)
        self._draft(places)

    def _draft(self, places: np.ndarray) -> None:
        limits = self.limits[self.rows[places]]
        self.levels[places] = self.rng.integers(1, limits + 1) if self.fixed is None else self.fixed[self.rows[places]]

    def observations(self) -> np.ndarray:
        """All candidates."""
        return size_observations(self.scores[self.rows], self.levels, self.lengths[self.rows], self.top_k, self.depth)

    def masks(self) -> np.ndarray:
        """Sizes that the tree's candidates can fill, and the smallest."""
        return sizes_allowed(self.table, self.levels)

    def step(self, actions: np.ndarray) -> Step:
        """Verify; every step is a cycle."""
        chosen = self.index[self.levels - 1, actions]
        tokens = self.table.tokens[self.rows, chosen].astype(float)
        seconds = self.table.seconds[self.rows, chosen].astype(float)
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


def ltd_index(table: OutcomeTable) -> np.ndarray:
    """Action of every depth and size of a grid with one width, [D, V]; sizes beyond a pool are its largest."""
    grid = table.grid
    assert len(grid.top_ks) == 1, "LTD keeps one width"
    sizes = [count for count in grid.num_tokens if count > 1]
    found = np.zeros((max(grid.depths), len(sizes)), dtype=np.int64)
    known = {(shape.depth, shape.num_tokens): place for place, shape in enumerate(grid.shapes)}
    for depth in range(1, max(grid.depths) + 1):
        fitting = [size for size in sizes if (depth, size) in known]
        for place, size in enumerate(sizes):
            best = max((one for one in fitting if one <= size), default=None)
            found[depth - 1, place] = 0 if best is None else known[depth, best]
    return found


def sizes_allowed(table: OutcomeTable, levels: np.ndarray) -> np.ndarray:
    """Sizes that are not the same tree as a smaller one, [n, V], of trees with these levels [n]."""
    index = ltd_index(table)
    fresh = np.concatenate((np.ones((len(index), 1), dtype=bool), index[:, 1:] != index[:, :-1]), axis=1)
    return fresh[levels - 1]


def depth_observations(scores: np.ndarray, levels: np.ndarray, lengths: np.ndarray, top_k: int) -> np.ndarray:
    """What a depth policy sees, [n, O], of all candidates' scores [n, S] after drafting `levels` [n] levels."""
    square = level_size(top_k)
    start = np.where(levels == 1, 0, top_k + (levels - 2) * square)
    count = np.where(levels == 1, top_k, square)
    column = np.arange(square)
    index = np.minimum(start[:, None] + column, scores.shape[1] - 1)
    own = np.where(column < count[:, None], np.take_along_axis(scores, index, axis=1).astype(np.float32), -np.inf)
    return of_level(torch.from_numpy(own), square, torch.from_numpy(lengths), torch.from_numpy(levels)).numpy()


def size_observations(
    scores: np.ndarray, levels: np.ndarray, lengths: np.ndarray, top_k: int, depth: int
) -> np.ndarray:
    """What a size policy sees, [n, O]: the candidates of the levels drafted, see `depth_observations`."""
    size = pool_size(top_k, depth)
    drafted = top_k + (levels - 1) * level_size(top_k)
    own = np.where(np.arange(size) < drafted[:, None], scores[:, :size].astype(np.float32), -np.inf)
    return of_level(torch.from_numpy(own), size, torch.from_numpy(lengths), torch.from_numpy(levels)).numpy()
