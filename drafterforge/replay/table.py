"""Outcome tables: tokens and seconds of every tree at every root, for replays by lookup.

Axes: R roots, A actions, P answers, E environments, O observation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from drafterforge.replay.trace import Traces, drafted_trees
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.latency import Cycles, LatencyProfile

CHUNK = 8192  # roots priced together, which bounds the memory


@dataclass(frozen=True)
class OutcomeTable:
    """Tokens and seconds of each action at each root of traces."""

    grid: ActionGrid | None  # of the actions; None: actions of several drafters
    tokens: np.ndarray  # [R, A] uint8 emitted, bonus included
    seconds: np.ndarray  # [R, A] float32
    starts: np.ndarray  # [P + 1] first row of each answer
    answer_of: np.ndarray  # [R]
    ends: np.ndarray  # [R] row after the last of the root's answer

    @property
    def num_roots(self) -> int:
        """R."""
        return len(self.tokens)

    @property
    def num_answers(self) -> int:
        """P."""
        return len(self.starts) - 1

    @property
    def num_tokens(self) -> np.ndarray:
        """Tokens emitted by cycles for each answer, [P]."""
        return np.diff(self.starts)


def build_table(
    traces: Traces, grid: ActionGrid, drafter: int, profile: LatencyProfile, grows: bool = False
) -> OutcomeTable:
    """The outcomes of all actions; the last cycle of an answer has no refresh.

    grows: for a policy that sets the number of nodes after drafting, so that trees are drafted at their full width.
    """
    tokens, shapes = traces.accept_lengths(grid, drafter), grid.table if grows else grid.drafted
    seconds = np.empty(tokens.shape, dtype=np.float32)
    for start in range(0, len(tokens), CHUNK):
        rows = slice(start, start + CHUNK)
        depths, nodes = drafted_trees(shapes, traces.levels[rows, None])
        cycles = Cycles(depths, shapes[None, :, 2], nodes, traces.positions[rows, None], tokens[rows].astype(int))
        is_last = tokens[rows] >= traces.ahead[rows, None]
        seconds[rows] = profile.cycle_s(cycles) - np.where(is_last, profile.step_s("refresh", cycles), 0.0)
    answer_of = traces.answer_of
    return OutcomeTable(grid, tokens, seconds, traces.starts, answer_of, traces.starts[answer_of + 1])


@dataclass(frozen=True)
class PlayTotals:
    """Totals of every answer, [P]."""

    cycles: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray

    @property
    def tokens_per_s(self) -> float:
        return float(self.tokens.sum() / self.seconds.sum())

    @property
    def mat(self) -> float:
        return float(self.tokens.sum() / self.cycles.sum())


def play(table: OutcomeTable, choose: Callable[[np.ndarray], np.ndarray], hold_cycles: int = 1) -> PlayTotals:
    """Replay all answers; choose(rows [n]) returns actions [n], each held for `hold_cycles` cycles."""
    count = table.num_answers
    rows, ends = table.starts[:-1].copy(), table.starts[1:]
    actions, num_held = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    cycles, seconds = np.zeros(count, dtype=np.int64), np.zeros(count)
    running = np.flatnonzero(rows < ends)
    while len(running):
        choosing = running[num_held[running] == 0]
        if len(choosing):
            actions[choosing], num_held[choosing] = choose(rows[choosing]), hold_cycles
        index = rows[running], actions[running]
        seconds[running] += table.seconds[index]
        rows[running] += table.tokens[index]
        cycles[running] += 1
        num_held[running] -= 1
        running = running[rows[running] < ends[running]]
    return PlayTotals(cycles, table.num_tokens, seconds)


def play_static(table: OutcomeTable) -> np.ndarray:
    """Seconds of each answer with each action alone, [P, A]."""
    actions = np.arange(table.tokens.shape[1])
    rows = np.repeat(table.starts[:-1, None], len(actions), axis=1)
    ends, total = table.starts[1:, None], np.zeros(rows.shape)
    running = rows < ends
    while running.any():
        at = np.minimum(rows, ends - 1)
        total += np.where(running, table.seconds[at, actions], 0.0)
        rows = np.where(running, rows + table.tokens[at, actions], rows)
        running = rows < ends
    return total
