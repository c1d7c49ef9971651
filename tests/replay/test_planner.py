"""The planner against every way to play."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.replay.planner import best_held, best_static, clairvoyant, policy_values, visits
from drafterforge.replay.table import play, play_static
from tests.replay.made import table


def fewest(one, row: int, end: int) -> float:
    """By trying everything."""
    if row >= end:
        return 0.0
    return min(one.seconds[row, a] + fewest(one, row + int(one.tokens[row, a]), end) for a in range(len(one.grid)))


def test_perfect_foresight_is_the_best_of_all_ways_to_play():
    one = table(lengths=(5, 1, 4))
    values, actions = clairvoyant(one)
    for row in range(one.num_roots):
        assert values[row] == pytest.approx(fewest(one, row, int(one.ends[row])))
    assert (actions.min(axis=1) == values).all()


@pytest.mark.parametrize("every", [1, 3, 40])
def test_kept_choices_lie_between_foresight_and_one_tree_per_answer(every):
    one = table(lengths=(19, 30))
    kept = best_held(one, every)
    free, static = clairvoyant(one)[0][one.starts[:-1]], play_static(one).min(axis=1)
    assert (kept >= free - 1e-6).all() and (kept <= static + 1e-6).all()
    if every == 1:
        assert kept == pytest.approx(free)
    if every == 40:
        assert kept == pytest.approx(static)


def test_static_play_equals_playing_one_action():
    one = table(lengths=(7, 12))
    total = play_static(one)
    for action in range(len(one.grid)):
        assert play(one, lambda rows, a=action: np.full(len(rows), a)).seconds == pytest.approx(total[:, action])
    assert best_static(one)[0] == total.sum(axis=0).argmin()


def test_values_of_a_policy_are_the_mean_of_playing_it():
    one, draw = table(lengths=(6, 4)), np.random.default_rng(0)
    probs = draw.dirichlet(np.ones(len(one.grid)), size=one.num_roots)
    values, actions = policy_values(one, probs)
    assert values == pytest.approx((probs * actions).sum(axis=1))
    cumulative = probs.cumsum(axis=1)
    totals = [
        play(one, lambda rows: (cumulative[rows] < draw.random(len(rows))[:, None]).sum(axis=1)).seconds
        for _ in range(3000)
    ]
    assert np.mean(totals, axis=0) == pytest.approx(values[one.starts[:-1]], rel=0.03)
    seconds = (visits(one, probs)[:, None] * probs * one.seconds).sum()
    assert seconds == pytest.approx(values[one.starts[:-1]].sum())
