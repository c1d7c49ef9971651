"""Compares schedulers on the same recorded answers.  Axes: R roots, A actions, P answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import wilcoxon

from drafterforge.replay.planner import best_held, best_static, clairvoyant
from drafterforge.replay.scheduler_actions import grown_actions, shape_actions
from drafterforge.replay.table import OutcomeTable, PlayTotals, build_table, play, play_static
from drafterforge.replay.trace import Traces
from drafterforge.runtime.rows import Generation
from drafterforge.schedulers.actions import NO_DRAFT, ActionGrid, describe
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.growing import GrowingPolicy
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.schedulers.policy import ShapePolicy
from drafterforge.tree.grow import TreeShape

HOLD_CYCLES = (2, 5, 10, 30)  # cycles for which perfect foresight holds an action


@dataclass(frozen=True)
class Schedule:
    """A way to choose trees: one shape, or a policy."""

    name: str
    shape: TreeShape | None = None
    policy: Scheduler | None = None


def schedule_of(name: str, policy: Scheduler) -> Schedule:
    """The schedule of a named policy."""
    return Schedule(f"policy {name}" if name == policy.name else f"policy {name} ({policy.name})", policy=policy)


def schedule_figures(schedule: Schedule, traces: Traces, drafter: int, profile: LatencyProfile) -> dict[str, Any]:
    """Figures of a schedule on recorded answers, without the time of the policy itself."""
    totals, used = play_schedule(schedule, traces, drafter, profile)
    return {
        "name": schedule.name,
        "mat": round(totals.mat, 4),
        "tokens_per_s": round(totals.tokens_per_s, 4),
        "actions": used,
    }


def play_schedule(schedule: Schedule, traces: Traces, drafter: int, profile: LatencyProfile) -> tuple[PlayTotals, int]:
    """Totals of every answer, and the number of different actions."""
    if schedule.shape is not None:
        grid = grid_of(schedule.shape)
        table, hold_cycles = build_table(traces, grid, drafter, profile), 1
        actions = np.full(traces.num_roots, len(grid) - 1)
    else:
        table, actions, hold_cycles = actions_of(schedule.policy, traces, drafter, profile)
    is_used = np.zeros(len(table.grid), dtype=bool)

    def choose(rows: np.ndarray) -> np.ndarray:
        is_used[actions[rows]] = True
        return actions[rows]

    return play(table, choose, hold_cycles), int(is_used.sum())


def actions_of(
    policy: ShapePolicy | GrowingPolicy, traces: Traces, drafter: int, profile: LatencyProfile
) -> tuple[OutcomeTable, np.ndarray, int]:
    """The outcomes of a policy's grid, its action at each root [R], and the cycles for which it is held."""
    table = build_table(traces, policy.grid, drafter, profile, policy.grows)
    if policy.grows:
        return table, grown_actions(policy, traces, drafter), 1
    return table, shape_actions(policy, traces, drafter, torch.Generator().manual_seed(0)), policy.hold_cycles


def grid_of(shape: TreeShape) -> ActionGrid:
    """A grid of one shape, with at most the nodes of its pool."""
    count = min(shape.num_tokens, shape.pool_size + 1)
    if count == 1:
        return ActionGrid("one", (1,), (1,), (1,))
    return ActionGrid("one", (count,), (shape.depth,), (shape.top_k,))


def bounds_of(
    traces: Traces, drafter: int, grid: ActionGrid, profile: LatencyProfile, train: Traces
) -> list[dict[str, Any]]:
    """Rows of bounds: no drafting, static trees in hindsight or by domain, and perfect foresight."""
    table = build_table(traces, grid, drafter, profile)
    seconds, tokens = play_static(table), table.num_tokens.sum()
    rows = [("no drafting", seconds[:, grid.index(NO_DRAFT)].sum())] if NO_DRAFT in grid.shapes else []
    hindsight, _ = best_static(table)
    rows.append(
        (
            f"best static tree of these answers in hindsight {describe(grid.shapes[hindsight])}",
            seconds[:, hindsight].sum(),
        )
    )
    rows.append(("best static tree of each domain", by_domain(traces, seconds, drafter, grid, profile, train)))
    rows += [(f"perfect foresight, held for {count} cycles", best_held(table, count).sum()) for count in HOLD_CYCLES]
    values, _ = clairvoyant(table)
    rows.append(("perfect foresight", values[table.starts[:-1]].sum()))
    return [
        {"name": name, "mat": None, "tokens_per_s": round(float(tokens / total), 4), "actions": None}
        for name, total in rows
    ]


def by_domain(
    traces: Traces, seconds: np.ndarray, drafter: int, grid: ActionGrid, profile: LatencyProfile, train: Traces
) -> float:
    """Seconds if each domain has the best static tree of its training answers."""
    table = build_table(train, grid, drafter, profile)
    train_seconds, total = play_static(table), 0.0
    for domain in sorted(set(traces.domains)):
        in_train, in_test = (np.array(part.domains) == domain for part in (train, traces))
        if not in_train.any():  # of a domain without training answers: the best tree of all of them
            in_train[:] = True
        total += seconds[in_test, train_seconds[in_train].sum(axis=0).argmin()].sum()
    return float(total)


def faster_p(answers: Sequence[Generation], baseline: Sequence[Generation]) -> float | None:
    """One-sided Wilcoxon p of per-prompt tokens/s being higher; None for fewer than six prompts."""
    rates, baseline_rates = ([len(a.tokens) / a.time_s["total"] for a in part] for part in (answers, baseline))
    if len(rates) < 6 or rates == baseline_rates:
        return None
    return float(wilcoxon(rates, baseline_rates, alternative="greater").pvalue)
