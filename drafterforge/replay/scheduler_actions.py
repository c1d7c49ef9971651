"""Actions of policies at every root of traces, so that replays are table lookups.

Axes: R roots, A actions, D levels, V sizes.
"""

from __future__ import annotations

import numpy as np
import torch

from drafterforge.replay.trace import Traces
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.growing import GrowingPolicy
from drafterforge.schedulers.nets import ActorCritic, act
from drafterforge.schedulers.observation import (
    Observation,
    level_observation,
    level_size,
    observation_vector,
    pool_size,
)
from drafterforge.schedulers.policy import ShapePolicy

CHUNK = 4096  # roots evaluated together


def observations_of(traces: Traces, drafter: int, parts: list[str]) -> np.ndarray:
    """Observations of a `ShapePolicy` at each root, float32 [R, O]."""
    observations = None
    for start in range(0, traces.num_roots, CHUNK):
        rows = slice(start, start + CHUNK)
        observation = Observation(
            torch.from_numpy(traces.rows["features"][rows]),
            torch.from_numpy(traces.rows["children"][drafter, rows]),
            torch.from_numpy(traces.positions[rows]),
            torch.from_numpy(traces.rows["texts"][rows]) if "text" in parts else None,
        )
        vectors = observation_vector(parts, observation).numpy()
        if observations is None:
            observations = np.empty((traces.num_roots, vectors.shape[1]), dtype=np.float32)
        observations[rows] = vectors
    return observations


@torch.inference_mode()
def logits_of(net: ActorCritic, observations: np.ndarray, chunk_size: int = CHUNK) -> np.ndarray:
    """Logits at each root, [R, A]."""
    chunks = torch.from_numpy(observations).split(chunk_size)
    return np.concatenate([net.logits(chunk).numpy() for chunk in chunks])


def shape_actions(
    policy: ShapePolicy, traces: Traces, drafter: int, generator: torch.Generator, chunk_size: int = CHUNK
) -> np.ndarray:
    """The action of a `ShapePolicy` at each root, [R].

    chunk_size: 1 gives logits bit-identical to live cycles; larger chunks round differently, which may break ties.
    """
    logits = logits_of(policy.net, observations_of(traces, drafter, policy.spec.parts), chunk_size)
    return act(torch.from_numpy(logits), policy.spec.temperature, generator).numpy()


@torch.inference_mode()
def levels_of(policy: GrowingPolicy, traces: Traces, drafter: int) -> np.ndarray:
    """Levels that a policy drafts at each root, [R], at least 1."""
    limits, top_k = np.clip(traces.levels, 1, policy.depth), policy.spec.top_k
    scores, levels = traces.rows["scores"][drafter], np.ones(traces.num_roots, dtype=np.int64)
    is_growing = limits > 1
    for level in range(1, policy.depth):
        first = 0 if level == 1 else pool_size(top_k, level - 1)
        count = top_k if level == 1 else level_size(top_k)
        rows = np.flatnonzero(is_growing)
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            newest = torch.from_numpy(scores[chunk, first : first + count].astype(np.float32))
            goes_on = policy.go_on(level, newest, torch.from_numpy(traces.positions[chunk])).numpy()
            levels[chunk] += goes_on
            is_growing[chunk] = goes_on & (levels[chunk] < limits[chunk])
    return levels


@torch.inference_mode()
def nodes_of(policy: GrowingPolicy, traces: Traces, drafter: int, depths: np.ndarray) -> np.ndarray:
    """Nodes that a policy verifies at each root, [R], of trees with `depths` levels [R]."""
    top_k, scores = policy.spec.top_k, traces.rows["scores"][drafter]
    candidate = np.arange(pool_size(top_k, policy.depth))
    nodes = []
    for start in range(0, traces.num_roots, CHUNK):
        rows = slice(start, start + CHUNK)
        drafted = candidate < pool_size(top_k, depths[rows, None])
        scored = np.where(drafted, scores[rows, : len(candidate)].astype(np.float32), -np.inf)
        inputs = (torch.from_numpy(array) for array in (depths[rows], scored, traces.positions[rows]))
        nodes.append(policy.nodes(*inputs).numpy())
    return np.concatenate(nodes)


def grown_actions(policy: GrowingPolicy, traces: Traces, drafter: int, depths: np.ndarray | None = None) -> np.ndarray:
    """The action of the policy's grid that equals its decisions at each root, [R].

    depths: drafted levels, [R]; None: those of the policy.
    """
    depths = levels_of(policy, traces, drafter) if depths is None else depths
    nodes = nodes_of(policy, traces, drafter, depths)
    sizes = np.searchsorted(policy.sizes, nodes, side="right") - 1  # a pool may be smaller than all sizes
    return actions_by_size(policy.grid)[depths - 1, np.maximum(sizes, 0)]


def actions_by_size(grid: ActionGrid) -> np.ndarray:
    """Action of each depth and size of a grid with one width, [D, V]; a size beyond the pool is its largest.

    Where every size is beyond the pool, a grid with the mask `growing` has the smallest one, cut to the pool.
    """
    assert len(grid.top_ks) == 1, "growing trees have one width"
    sizes = [count for count in grid.num_tokens if count > 1]
    actions = np.zeros((max(grid.depths), len(sizes)), dtype=np.int64)
    action_of = {(shape.depth, shape.num_tokens): action for action, shape in enumerate(grid.shapes)}
    for depth in range(1, max(grid.depths) + 1):
        fitting = [size for size in sizes if (depth, size) in action_of]
        for column, size in enumerate(sizes):
            largest = max((candidate for candidate in fitting if candidate <= size), default=None)
            actions[depth - 1, column] = 0 if largest is None else action_of[depth, largest]
    return actions


def sizes_allowed(grid: ActionGrid, levels: np.ndarray) -> np.ndarray:
    """Whether a size gives another tree than the next smaller one, [n, V], for trees with `levels` [n]."""
    index = actions_by_size(grid)
    is_distinct = np.concatenate((np.ones((len(index), 1), dtype=bool), index[:, 1:] != index[:, :-1]), axis=1)
    return is_distinct[levels - 1]


def depth_observations(scores: np.ndarray, levels: np.ndarray, lengths: np.ndarray, top_k: int) -> np.ndarray:
    """Observations of a depth policy, [n, O], from all candidates' scores [n, S] after `levels` [n] drafted levels."""
    square = level_size(top_k)
    start = np.where(levels == 1, 0, top_k + (levels - 2) * square)
    count = np.where(levels == 1, top_k, square)
    column = np.arange(square)
    index = np.minimum(start[:, None] + column, scores.shape[1] - 1)
    scored = np.where(column < count[:, None], np.take_along_axis(scores, index, axis=1).astype(np.float32), -np.inf)
    return level_observation(
        torch.from_numpy(scored), square, torch.from_numpy(lengths), torch.from_numpy(levels)
    ).numpy()


def size_observations(
    scores: np.ndarray, levels: np.ndarray, lengths: np.ndarray, top_k: int, depth: int
) -> np.ndarray:
    """Observations of a size policy, [n, O]: the candidates of the drafted levels, see `depth_observations`."""
    size = pool_size(top_k, depth)
    drafted = top_k + (levels - 1) * level_size(top_k)
    scored = np.where(np.arange(size) < drafted[:, None], scores[:, :size].astype(np.float32), -np.inf)
    return level_observation(
        torch.from_numpy(scored), size, torch.from_numpy(lengths), torch.from_numpy(levels)
    ).numpy()
