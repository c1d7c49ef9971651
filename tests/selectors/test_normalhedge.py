"""NormalHedge solves its equation for all regrets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drafterforge.selectors import learner
from drafterforge.selectors.learners.normalhedge import normalhedge_probs

REGRETS = st.lists(st.floats(-50, 50), min_size=1, max_size=32).map(np.array)
QUICK = settings(max_examples=200, deadline=None)


def solve_by_bisection(regrets) -> float:
    """c by bisection of the logarithm of its equation."""
    square = np.maximum(regrets, 0) ** 2
    top = square.max()
    low, high = top / (2 * (1 + math.log(len(square)))), top / 2
    for _ in range(200):
        c = (low + high) / 2
        value = math.log(np.exp((square - top) / (2 * c)).mean()) + top / (2 * c)
        low, high = (c, high) if value > 1 else (low, c)
    return c


@QUICK
@given(REGRETS)
def test_c_solves_the_equation_inside_its_bracket_and_equals_bisection(regrets):
    weights, c = normalhedge_probs(regrets)
    assert abs(weights.sum() - 1) < 1e-12 and weights.min() >= 0
    top = regrets.max()
    if top <= 1e-100:  # the square underflows
        return
    assert top**2 / (2 * (1 + math.log(len(regrets)))) * (1 - 1e-12) <= c <= top**2 / 2 * (1 + 1e-12)
    assert abs(np.exp(np.maximum(regrets, 0) ** 2 / (2 * c)).mean() - math.e) < 1e-9
    assert c == pytest.approx(solve_by_bisection(regrets), rel=1e-9)
    positive = np.maximum(regrets, 0)
    slow = positive / c * np.exp((positive**2 - top**2) / (2 * c))
    assert weights == pytest.approx(slow / slow.sum(), rel=1e-9, abs=1e-12)


@QUICK
@given(REGRETS, st.sampled_from([1e-6, 1e-3, 1e3, 1e6]))
def test_weights_do_not_depend_on_the_scale_of_regrets(regrets, scale):
    assume(not 0 < regrets.max() < 1e-100)  # scaled regrets would be denormal
    assert normalhedge_probs(scale * regrets)[0] == pytest.approx(normalhedge_probs(regrets)[0], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("regrets", [[0.0], [0.0, 0.0], [-1.0, -2.0, 0.0]])
def test_without_positive_regret_the_probabilities_are_uniform(regrets):
    weights, c = normalhedge_probs(np.array(regrets))
    assert weights.tolist() == [1 / len(regrets)] * len(regrets)
    assert c == 0


def test_large_regrets_do_not_overflow():
    for top in (1e2, 1e4, 1e8):
        weights = normalhedge_probs(np.array([top, 0.999 * top, -top, 0.0]))[0]
        assert np.isfinite(weights).all() and abs(weights.sum() - 1) < 1e-12


@QUICK
@given(REGRETS)
def test_a_round_of_equal_losses_changes_nothing(regrets):
    policy = learner("normalhedge", len(regrets))
    policy.regrets = regrets
    before = policy.probs
    policy.update(np.full(len(regrets), 0.3))
    assert np.array_equal(policy.regrets, regrets) and np.array_equal(policy.probs, before)
