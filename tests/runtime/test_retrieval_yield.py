"""What retrieval adds alone is learned by what it promises."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.runtime.retrieval_yield import ADDED, BOUNDS, PROMISED, RetrievalYield
from drafterforge.runtime.verify_costs import VerifyCosts
from drafterforge.runtime.worth import Worth
from drafterforge.runtime.worth_state import load_state, save_state
from tests.runtime.test_worth import finished_cycle


def new_worth() -> Worth:
    return Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))


def test_more_is_expected_where_more_is_promised():
    assert len(PROMISED) == len(ADDED) == len(BOUNDS) + 1
    for value, low, high in zip(PROMISED, (0.0, *BOUNDS), (*BOUNDS, 16.0), strict=True):
        assert low < value < high
    expected = [RetrievalYield().of(promised) for promised in np.linspace(0.0, 20.0, 400)]
    assert expected[0] == 0.0 and expected == sorted(expected)


def test_averages_of_a_range_replace_its_assumption_and_no_other():
    yields, assumed = RetrievalYield(), RetrievalYield()
    for number in range(2000):
        yields.learn(0.7 if number % 2 else 0.9, 0.4)
    assert yields.of(0.8) == pytest.approx(0.4, rel=0.02)
    for promised in (0.05, 0.2, 0.45, 1.2, 2.0, 9.0):
        assert yields.of(promised) == pytest.approx(assumed.of(promised))
    assert yields.as_prior().of(0.8) == pytest.approx(yields.of(0.8))


@pytest.mark.parametrize("neural", [False, True])
def test_an_engine_learns_from_trees_of_retrieval_alone(neural, tmp_path):
    worth = new_worth()
    row = worth.row(0.0, 1)
    row.drafts, before = True, row.traffic.retrieval.of(0.8)
    for _ in range(600):
        limits, row.neural_tries, row.is_awake = worth.limits([row], 1, 5, "eagle"), int(neural), neural
        assert limits.uses_neural(0, 0.8, 1.0, 3) is neural
        assert row.retrieved == row.traffic.retrieval.of(0.8)
        limits.clock, limits.ended = [0.0, 0.002], 0.002
        worth.learn([row], finished_cycle(5, 4, 0.011, 0.002), [limits])
    assert row.traffic.retrieval.of(0.8) == (before if neural else pytest.approx(4.0, abs=0.2))
    save_state(worth, tmp_path / "state.json")
    restarted = new_worth()
    load_state(restarted, tmp_path / "state.json")
    assert restarted.row(0.0, 1).traffic.retrieval.of(0.8) == pytest.approx(row.traffic.retrieval.of(0.8))
