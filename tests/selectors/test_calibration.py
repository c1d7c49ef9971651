"""Calibration lowers the predictions of a drafter's level that accepts less than predicted."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.selectors import Context, Evaluation, Feedback
from drafterforge.selectors.calibration import Calibration
from tests.selectors.world import make

DEPTH = 3


def cycle(drafter, position, length, gamma):
    return Feedback(drafter, position, length, DEPTH, evaluation=Evaluation(position, gamma, gamma))


def test_factors_approach_accepted_over_predicted_of_the_drafter_that_drafted():
    rng, calibration = np.random.default_rng(0), Calibration(2, DEPTH, rate=0.01)
    position = 0
    for _ in range(6000):
        hits = rng.random(DEPTH) < [0.8, 0.4, 0.4]  # the pool pass predicts .8 at every level
        length = int(1 + hits.cumprod().sum())
        feedback = cycle(0, position, length, np.full((2, length), 0.8))
        calibration.add_cycle(feedback)
        calibration.extend(feedback.evaluation)
        position += length
    assert calibration.factors[0] == pytest.approx([1, 0.5, 0.5], abs=0.12)
    assert calibration.factors[1].tolist() == [1, 1, 1]
    assert calibration.cycles == []


def test_late_evaluations_give_the_same_factors_as_prompt_ones():
    rng, prompt, late = np.random.default_rng(1), Calibration(2, DEPTH), Calibration(2, DEPTH)
    gamma, begin, sent = rng.random((2, 200)), 0, 0
    for number in range(60):
        length = int(rng.integers(1, DEPTH + 2))
        feedback = cycle(number % 2, begin, length, gamma[:, begin : begin + length])
        for calibration in (prompt, late):
            calibration.add_cycle(feedback)
        prompt.extend(feedback.evaluation)
        begin += length
        if number % 3 == 2:
            late.extend(Evaluation(sent, gamma[:, sent:begin], gamma[:, sent:begin]))
            sent = begin
    assert np.array_equal(prompt.factors, late.factors)


def test_a_drafter_that_fails_at_deep_levels_loses_its_lead():
    """A predicts more at level 1, but accepts nothing from level 2 on, which only calibration shows."""
    shares = {}
    for calibration in (False, True):
        rng = np.random.default_rng(2)
        chooser = make("normalhedge", 2, DEPTH, calibration=calibration, draw="sample")
        chooser.begin(seed=0)
        position = 0
        for number in range(400):
            drafter = chooser.select(Context(number, position)).drafter
            real = [0.9, 0.0, 0.0] if drafter == 0 else [0.8, 0.8, 0.8]
            length = int(1 + (rng.random(DEPTH) < real).cumprod().sum())
            chooser.observe(cycle(drafter, position, length, np.array([[0.9] * length, [0.8] * length])))
            position += length
        shares[calibration] = chooser.probs[1]
    assert shares[False] < 0.01 and shares[True] > 0.99
