"""What PPO plays in: E environments at once, NumPy in and out.

Axes: E environments, O observation, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


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
