"""What policies choose at every root of traces, so that they are replayed by table lookup.

Axes: R roots, A actions, D levels, V sizes.
"""

from __future__ import annotations

import numpy as np
import torch

from drafterforge.replay.episodes import depth_observations, ltd_index, size_observations, sizes_allowed
from drafterforge.replay.table import OutcomeTable
from drafterforge.replay.trace import Traces
from drafterforge.schedulers.growing import GrowingPolicy
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.observation import Observation, level_size, observed, pool_size

CHUNK = 4096  # roots looked at together


def observations_of(traces: Traces, drafter: int, parts: list[str]) -> np.ndarray:
    """What a scheduler of whole shapes would see at each root, float32 [R, O]."""
    found = []
    for start in range(0, traces.num_roots, CHUNK):
        rows = slice(start, start + CHUNK)
        seen = Observation(
            torch.from_numpy(traces.rows["features"][rows]),
            torch.from_numpy(traces.rows["children"][drafter, rows]),
            torch.from_numpy(traces.positions[rows]),
            torch.from_numpy(traces.rows["texts"][rows]) if "text" in parts else None,
        )
        found.append(observed(parts, seen).numpy())
    return np.concatenate(found)


@torch.inference_mode()
def logits_of(net: ActorCritic, observations: np.ndarray, masks: np.ndarray | None = None) -> np.ndarray:
    """Logits at each root, [R, A]."""
    found = []
    for start in range(0, len(observations), CHUNK):
        rows = slice(start, start + CHUNK)
        mask = None if masks is None else torch.from_numpy(masks[rows])
        found.append(net.logits(torch.from_numpy(observations[rows]), mask).numpy())
    return np.concatenate(found)


def depths_of(net: ActorCritic | None, traces: Traces, drafter: int, depth: int) -> np.ndarray:
    """Levels that a depth policy drafts at each root, [R], at least 1; without one, as many as could count."""
    limits = np.clip(traces.levels, 1, depth)
    if net is None:
        return limits
    scores, top_k, lengths = traces.rows["scores"][drafter], traces.spec.score_top_k, traces.positions
    found, going = np.ones(traces.num_roots, dtype=np.int64), limits > 1
    for level in range(1, depth):
        rows = np.flatnonzero(going)
        if not len(rows):
            break
        seen = depth_observations(scores[rows], np.full(len(rows), level), lengths[rows], top_k)
        on = logits_of(net, seen).argmax(axis=1) == 1
        found[rows[on]] += 1
        going[rows] = on & (found[rows] < limits[rows])
    return found


def sizes_of(
    net: ActorCritic | None, traces: Traces, drafter: int, table: OutcomeTable, depths: np.ndarray
) -> np.ndarray:
    """Place of the size that a size policy chooses at each root for trees of `depths` [R]; without one the largest."""
    if net is None:
        return np.full(traces.num_roots, ltd_index(table).shape[1] - 1)
    scores, top_k = traces.rows["scores"][drafter], traces.spec.score_top_k
    found = []
    for start in range(0, traces.num_roots, CHUNK):
        rows = slice(start, start + CHUNK)
        seen = size_observations(scores[rows], depths[rows], traces.positions[rows], top_k, max(table.grid.depths))
        found.append(logits_of(net, seen, sizes_allowed(table, depths[rows])).argmax(axis=1))
    return np.concatenate(found)


@torch.inference_mode()
def levels_of(policy: GrowingPolicy, traces: Traces, drafter: int) -> np.ndarray:
    """Levels that a policy drafts at each root, [R], at least 1: its own decisions."""
    limits, top_k = np.clip(traces.levels, 1, policy.depth), policy.spec.top_k
    scores, found = traces.rows["scores"][drafter], np.ones(traces.num_roots, dtype=np.int64)
    going = limits > 1
    for level in range(1, policy.depth):
        first = 0 if level == 1 else pool_size(top_k, level - 1)
        count = top_k if level == 1 else level_size(top_k)
        rows = np.flatnonzero(going)
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            own = torch.from_numpy(scores[some, first : first + count].astype(np.float32))
            on = policy.go_on(level, own, torch.from_numpy(traces.positions[some])).numpy()
            found[some[on]] += 1
            going[some] = on & (found[some] < limits[some])
    return found


@torch.inference_mode()
def nodes_of(policy: GrowingPolicy, traces: Traces, drafter: int, depths: np.ndarray) -> np.ndarray:
    """Nodes that a policy has verified at each root, [R], of trees with `depths` levels [R]: its own decisions."""
    top_k, scores = policy.spec.top_k, traces.rows["scores"][drafter]
    candidate = np.arange(pool_size(top_k, policy.depth))
    found = []
    for start in range(0, traces.num_roots, CHUNK):
        rows = slice(start, start + CHUNK)
        drafted = candidate < pool_size(top_k, depths[rows, None])
        own = np.where(drafted, scores[rows, : len(candidate)].astype(np.float32), -np.inf)
        given = (torch.from_numpy(one) for one in (depths[rows], own, traces.positions[rows]))
        found.append(policy.nodes(*given).numpy())
    return np.concatenate(found)


def grown_actions(policy: GrowingPolicy, traces: Traces, drafter: int, table: OutcomeTable) -> np.ndarray:
    """The action of the policy's grid that its decisions amount to at each root, [R]."""
    depths = levels_of(policy, traces, drafter)
    index, place = ltd_index(table), {count: at for at, count in enumerate(policy.sizes)}
    nodes = nodes_of(policy, traces, drafter, depths)
    return index[depths - 1, [place[count] for count in nodes.tolist()]]


def ltd_actions(
    depth_net: ActorCritic | None, size_net: ActorCritic | None, traces: Traces, drafter: int, table: OutcomeTable
) -> np.ndarray:
    """The action that LTD's two policies amount to at each root, [R]."""
    depths = depths_of(depth_net, traces, drafter, max(table.grid.depths))
    return ltd_index(table)[depths - 1, sizes_of(size_net, traces, drafter, table, depths)]
