"""Ratios, intervals and corrected p values equal hand-computed ones."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.errors import DrafterforgeError
from drafterforge.evaluation.statistics import (
    bootstrap_macro_ratio,
    bootstrap_mean_ratio,
    bootstrap_ratio,
    holm,
    macro_ratio,
    mean_and_spread,
    totals_ratio,
)

# one method at 10 and 20 tokens/s, the other at 5 and 20
PAIRS = [(10, 1, 10, 2), (300, 15, 300, 15)]


def test_holm_multiplies_by_the_tests_that_are_left_and_never_falls():
    # sorted 0.01, 0.02, 0.03, 0.04: times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.04, and none is less than the previous
    assert holm([0.01, 0.04, 0.03, 0.02]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    # another example: sorted 0.001, 0.01, 0.02, 0.3 times 4, 3, 2, 1
    assert holm([0.3, 0.001, 0.02, 0.01]) == pytest.approx([0.3, 0.004, 0.04, 0.03])


def test_holm_ignores_missing_values_and_returns_probabilities():
    assert holm([None, 0.02, None, 0.5]) == [None, pytest.approx(0.04), None, pytest.approx(0.5)]
    assert holm([0.6, 0.7, 1.0]) == [1.0, 1.0, 1.0]
    assert holm([0.2]) == [0.2] and holm([]) == [] and holm([None]) == [None]


def test_equal_p_values_stay_equal():
    assert holm([0.01, 0.01, 0.01]) == pytest.approx([0.03, 0.03, 0.03])


@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan")])
def test_p_values_outside_0_and_1_are_refused(wrong):
    with pytest.raises(DrafterforgeError, match=r"a p value lies in \[0, 1\], got"):
        holm([0.1, wrong])


def test_a_macro_ratio_weighs_prompts_alike_and_totals_weigh_seconds():
    assert macro_ratio(PAIRS) == pytest.approx((2 + 1) / 2)
    assert totals_ratio(PAIRS) == pytest.approx((310 / 16) / (310 / 17))


def test_the_interval_of_a_mean_over_seeds_covers_the_spread_of_the_seeds():
    slow, fast = ([(rate, 1.0, 10.0, 1.0)] * 8 for rate in (9.0, 12.0))  # all prompts of a seed alike
    assert bootstrap_mean_ratio([slow, slow]) == pytest.approx((0.9, 0.9))
    assert bootstrap_mean_ratio([slow, fast]) == pytest.approx((0.9, 1.2))  # a draw may have one seed twice
    assert bootstrap_mean_ratio([PAIRS], seed=2)[0] < totals_ratio(PAIRS) < bootstrap_mean_ratio([PAIRS], seed=2)[1]


def test_mean_and_spread_of_two_values_by_hand():
    assert mean_and_spread([1.0, 1.2]) == {"mean": 1.1, "sd": pytest.approx(0.1414), "values": [1.0, 1.2]}
    assert mean_and_spread([1.0])["sd"] is None


def test_intervals_equal_those_of_resampled_pairs():
    pairs = [(10.0 + n, 1.0, 10.0, 1.0 + n / 20) for n in range(12)]
    picked = np.random.default_rng(3).integers(0, 12, size=(2000, 12))
    macro, totals = [], []
    for draw in picked:
        some = [pairs[index] for index in draw]
        macro.append(np.mean([a / b / (c / d) for a, b, c, d in some]))
        totals.append(
            np.divide(*(sum(pair[at] for pair in some) for at in (0, 1)))
            * np.divide(*(sum(pair[at] for pair in some) for at in (3, 2)))
        )
    assert bootstrap_macro_ratio(pairs, seed=3) == pytest.approx(np.percentile(macro, [2.5, 97.5]))
    assert bootstrap_ratio(pairs, seed=3) == pytest.approx(np.percentile(totals, [2.5, 97.5]))
    low, high = bootstrap_macro_ratio(pairs)
    assert low < macro_ratio(pairs) < high


def test_the_ratio_of_a_method_to_itself_is_one():
    pairs = [(n, n / 7, n, n / 7) for n in range(1, 9)]
    for interval in (bootstrap_ratio(pairs), bootstrap_macro_ratio(pairs)):
        assert interval == pytest.approx((1.0, 1.0))
    with pytest.raises(DrafterforgeError, match="tokens and seconds of both methods for each prompt"):
        macro_ratio([])
