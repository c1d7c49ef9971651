"""Live decoding as an environment of one answer at a time, whose rewards are measured on the wall clock.

The engine decodes in a thread, which waits for the tree of every cycle, so PPO trains on it as on replayed answers.
Axes: O observation, A actions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Queue
from threading import Thread

import numpy as np

from drafterforge.drafters.base import Drafter
from drafterforge.replay.environment import Step, rewards_of
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.observation import Observation, observation_vector
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


@dataclass(frozen=True)
class Root:
    """A cycle is about to begin."""

    time: float  # seconds of `time.perf_counter`
    position: int
    vector: np.ndarray  # [O]


@dataclass(frozen=True)
class AnswerEnd:
    """The last cycle of an answer is over."""

    time: float
    position: int  # of the last token
    error: BaseException | None = None


@dataclass(frozen=True)
class OnlineCycle:
    """A measured cycle."""

    prompt: int
    position: int  # of its root
    action: int
    tokens: int
    seconds: float


class ClosedError(Exception):
    """Ends the decoding thread."""


class OnlineScheduler(Scheduler):
    """Sends every observation to another thread and waits for a tree."""

    name = "online"

    def __init__(self, grid: ActionGrid, parts: Sequence[str]) -> None:
        """parts: of the observation."""
        self.grid, self.parts, self.depth = grid, list(parts), max(grid.depths)
        self.reads_children = "children" in parts
        self.reads_features, self.reads_text = "features" in parts, "text" in parts
        self.events: Queue[Root | AnswerEnd] = Queue()
        self.trees: Queue[TreeShape | None] = Queue()

    def choose(self, observation: Observation) -> list[TreeShape]:
        """The tree that arrives for the only row."""
        now = time.perf_counter()
        vector = observation_vector(self.parts, observation).cpu().numpy()[0]
        self.events.put(Root(now, int(observation.lengths[0]), vector))
        shape = self.trees.get()
        if shape is None:
            raise ClosedError
        return [shape]

    def largest_shapes(self) -> Sequence[TreeShape]:
        """All shapes of the grid."""
        return self.grid.shapes

    def replayed_shapes(self) -> None:
        """None: its choices come from outside."""


class OnlineEnvironment:
    """A `VectorEnvironment` of one answer that is decoded live; close it when it is no longer needed."""

    num_envs = 1

    def __init__(
        self,
        target: Target,
        drafter: tuple[str, Drafter],
        scheduler: OnlineScheduler,
        prompts: Sequence[list[int]],
        observation_size: int,
        max_new_tokens: int,
        hold_cycles: int = 10,
        reward: str = "throughput",
        seed: int = 0,
    ) -> None:
        """drafter: its name, and itself.  prompts: token ids; each answer is that of a random one."""
        self.scheduler, self.prompts, self.max_new_tokens = scheduler, prompts, max_new_tokens
        self.hold_cycles, self.reward = hold_cycles, reward
        self.observation_size, self.num_actions = observation_size, len(scheduler.grid)
        pool = Pool(dict([drafter]), "static", scheduler=scheduler)
        self.engine = Engine(target, pool, scheduler.grid.shapes[-1], max_batch=1)
        self.rng, self.prompt, self.answering = np.random.default_rng(seed), 0, 0
        self.cycles: list[OnlineCycle] = []
        self.thread = Thread(target=self._decode, daemon=True)
        self.mask = np.ones((1, self.num_actions), dtype=bool)

    def reset(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin the first answer."""
        self.thread.start()
        self.root = self._first_root()
        return self.root.vector[None], self.mask

    def step(self, actions: np.ndarray) -> Step:
        """Decode up to `hold_cycles` cycles with an action, [1]."""
        first, is_over = len(self.cycles), False
        while len(self.cycles) < first + self.hold_cycles and not is_over:
            root, began = self.root, time.perf_counter()
            self.scheduler.trees.put(self.scheduler.grid.shapes[actions[0]])
            event = self._event()
            tokens = event.position - root.position
            self.cycles.append(OnlineCycle(self.answering, root.position, int(actions[0]), tokens, event.time - began))
            is_over = isinstance(event, AnswerEnd)
            self.root = self._first_root() if isinstance(event, AnswerEnd) else event
        tokens, seconds = np.array([(cycle.tokens, cycle.seconds) for cycle in self.cycles[first:]]).T
        rewards = np.float32([rewards_of(self.reward, tokens, seconds).mean()])
        totals = (np.array([values.sum()]) for values in (tokens, seconds))
        return Step(
            self.root.vector[None], self.mask, rewards, np.array([is_over]), *totals, cycles=np.array([len(tokens)])
        )

    def close(self) -> None:
        """End the decoding."""
        if self.thread.is_alive():
            self.scheduler.trees.put(None)
            self.thread.join()

    def _decode(self) -> None:
        """Answer prompts until the environment is closed."""
        try:
            while True:
                self.prompt = int(self.rng.integers(len(self.prompts)))
                ids = self.prompts[self.prompt]
                (answer,) = self.engine.generate([ids], self.max_new_tokens)
                self.scheduler.events.put(AnswerEnd(time.perf_counter(), len(ids) + len(answer.tokens) - 1))
        except ClosedError:
            return
        except BaseException as error:  # raised where the environment is used
            self.scheduler.events.put(AnswerEnd(time.perf_counter(), 0, error))

    def _event(self) -> Root | AnswerEnd:
        event = self.scheduler.events.get()
        if isinstance(event, AnswerEnd) and event.error is not None:
            raise event.error
        return event

    def _first_root(self) -> Root:
        """The first root of the next answer that has a cycle."""
        while not isinstance(event := self._event(), Root):
            pass
        self.answering = self.prompt  # the thread, which waits for a tree now, may be ahead later
        return event
