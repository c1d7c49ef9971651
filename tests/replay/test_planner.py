"""The planner equals a search over all sequences of actions."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.replay.planner import best_held, best_static, clairvoyant, policy_values, visits
from drafterforge.replay.table import play, play_static
from tests.replay.builders import table


def fewest_seconds(outcomes, row: int, end: int) -> float:
    """The fewest seconds from a row to the end, by exhaustive search."""
    if row >= end:
        return 0.0
    steps = zip(outcomes.seconds[row], outcomes.tokens[row], strict=True)
    return min(seconds + fewest_seconds(outcomes, row + int(tokens), end) for seconds, tokens in steps)


def test_the_clairvoyant_plan_is_the_best_sequence_of_actions():
    outcomes = table(lengths=(5, 1, 4))
    values, actions = clairvoyant(outcomes)
    for row in range(outcomes.num_roots):
        assert values[row] == pytest.approx(fewest_seconds(outcomes, row, int(outcomes.ends[row])))
    assert (actions.min(axis=1) == values).all()


@pytest.mark.parametrize("hold_cycles", [1, 3, 40])
def test_held_choices_lie_between_the_clairvoyant_plan_and_one_tree_per_answer(hold_cycles):
    outcomes = table(lengths=(19, 30))
    held_seconds = best_held(outcomes, hold_cycles)
    free, static = clairvoyant(outcomes)[0][outcomes.starts[:-1]], play_static(outcomes).min(axis=1)
    assert (held_seconds >= free - 1e-6).all() and (held_seconds <= static + 1e-6).all()
    if hold_cycles == 1:
        assert held_seconds == pytest.approx(free)
    if hold_cycles == 40:
        assert held_seconds == pytest.approx(static)


def test_static_play_equals_playing_one_action():
    outcomes = table(lengths=(7, 12))
    total = play_static(outcomes)
    for action in range(len(outcomes.grid)):
        assert play(outcomes, lambda rows, a=action: np.full(len(rows), a)).seconds == pytest.approx(total[:, action])
    assert best_static(outcomes)[0] == total.sum(axis=0).argmin()


def test_values_of_a_policy_are_the_mean_of_playing_it():
    outcomes, draw = table(lengths=(6, 4)), np.random.default_rng(0)
    probs = draw.dirichlet(np.ones(len(outcomes.grid)), size=outcomes.num_roots)
    values, actions = policy_values(outcomes, probs)
    assert values == pytest.approx((probs * actions).sum(axis=1))
    cumulative = probs.cumsum(axis=1)
    totals = [
        play(outcomes, lambda rows: (cumulative[rows] < draw.random(len(rows))[:, None]).sum(axis=1)).seconds
        for _ in range(3000)
    ]
    assert np.mean(totals, axis=0) == pytest.approx(values[outcomes.starts[:-1]], rel=0.03)
    seconds = (visits(outcomes, probs)[:, None] * probs * outcomes.seconds).sum()
    assert seconds == pytest.approx(values[outcomes.starts[:-1]].sum())
