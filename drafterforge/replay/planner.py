"""The exact planner: the fastest sequence of trees for a recorded answer, by dynamic programming.

A cycle is a step from one root to a later one, and all tokens must be emitted: the fastest schedule is a shortest path.
A value is the seconds from a root to the end of its answer.
Axes: R roots, A actions, P answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from drafterforge.replay.table import OutcomeTable, play_static


def backward(table: OutcomeTable) -> Iterator[np.ndarray]:
    """Rows of all answers at equal distance from the end, last roots first."""
    lengths = np.diff(table.starts)
    for left in range(1, int(lengths.max(initial=0)) + 1):
        yield table.starts[1:][lengths >= left] - left


def values_under(
    table: OutcomeTable, back_up: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds to the end of its answer from each root [R], and with each action first [R, A].

    back_up(rows [n], action values [n, A]) returns the values of the rows, [n].
    """
    following = np.minimum(np.arange(table.num_roots)[:, None] + table.tokens, table.ends[:, None])
    over = following >= table.ends[:, None]
    values, actions = np.zeros(table.num_roots + 1), np.empty(table.tokens.shape)
    for rows in backward(table):
        ahead = np.where(over[rows], 0.0, values[following[rows]])
        actions[rows] = table.seconds[rows] + ahead
        values[rows] = back_up(rows, actions[rows])
    return values[:-1], actions


def clairvoyant(table: OutcomeTable) -> tuple[np.ndarray, np.ndarray]:
    """Fewest seconds to the end from each root [R], and with each action first [R, A]: a bound of all policies."""
    return values_under(table, lambda _, actions: actions.min(axis=1))


def policy_values(table: OutcomeTable, probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expected seconds to the end under a policy [R, A], and with each action first."""
    return values_under(table, lambda rows, actions: (probs[rows] * actions).sum(axis=1))


def visits(table: OutcomeTable, probs: np.ndarray) -> np.ndarray:
    """Probability that a cycle of each answer begins at each root under a policy [R, A], [R]."""
    probability = np.zeros(table.num_roots)
    probability[table.starts[:-1][np.diff(table.starts) > 0]] = 1.0
    lengths = np.diff(table.starts)
    for step in range(int(lengths.max(initial=0))):
        rows = table.starts[:-1][lengths > step] + step
        following = rows[:, None] + table.tokens[rows]
        inside = following < table.ends[rows, None]
        np.add.at(probability, following[inside], (probability[rows, None] * probs[rows])[inside])
    return probability


def best_static(table: OutcomeTable, answers: Sequence[int] | None = None) -> tuple[int, np.ndarray]:
    """The single action with the fewest total seconds, and the total seconds of each action, [A]."""
    seconds = play_static(table)
    total = (seconds if answers is None else seconds[list(answers)]).sum(axis=0)
    return int(total.argmin()), total


def best_held(table: OutcomeTable, hold_cycles: int) -> np.ndarray:
    """Fewest seconds of each answer if every action is held for `hold_cycles` cycles, [P]."""
    rows = np.repeat(np.arange(table.num_roots)[:, None], len(table.grid), axis=1)
    actions, ends = np.arange(len(table.grid)), table.ends[:, None]
    seconds = np.zeros(rows.shape)
    for _ in range(hold_cycles):
        running = rows < ends
        at = np.minimum(rows, table.num_roots - 1)
        seconds += np.where(running, table.seconds[at, actions], 0.0)
        rows = np.where(running, rows + table.tokens[at, actions], rows)
    values = np.zeros(table.num_roots + 1)
    for roots in backward(table):
        ahead = np.where(rows[roots] < ends[roots], values[np.minimum(rows[roots], table.num_roots)], 0.0)
        values[roots] = (seconds[roots] + ahead).min(axis=1)
    return values[table.starts[:-1]]
