"""What retrieval adds alone is learned by what it promises."""

from __future__ import annotations

import pytest

from drafterforge.runtime.retrieval_yield import BOUNDS, CENTRES, RATIOS, RetrievalYield
from drafterforge.runtime.verify_costs import VerifyCosts
from drafterforge.runtime.worth import Worth
from tests.runtime.test_worth import finished_cycle


def test_every_range_has_an_assumption():
    assert len(CENTRES) == len(RATIOS) == len(BOUNDS) + 1
    for centre, low, high in zip(CENTRES, (0.0, *BOUNDS), (*BOUNDS, 16.0), strict=True):
        assert low < centre < high
    yields = RetrievalYield()
    assert yields.of(0.45) == pytest.approx(0.9) and yields.of(8.0) == pytest.approx(6.8) and yields.of(0.0) == 0.0


def test_averages_of_a_range_replace_its_assumption_and_no_other():
    yields = RetrievalYield()
    unchanged = [yields.of(centre) for centre in CENTRES if centre != 0.8]
    for number in range(2000):
        yields.learn(0.7 if number % 2 else 0.9, 0.4)
    assert yields.of(0.8) == pytest.approx(0.4, rel=0.02) and yields.of(0.7) == pytest.approx(0.35, rel=0.02)
    assert [yields.of(centre) for centre in CENTRES if centre != 0.8] == unchanged


@pytest.mark.parametrize("neural", [False, True])
def test_an_engine_learns_from_trees_of_retrieval_alone(neural):
    worth = Worth(VerifyCosts((1, 5, 16), (0.010, 0.011, 0.040)))
    row = worth.row(0.0, 1)
    row.drafts = True
    for _ in range(3):
        limits, row.neural_tries, row.is_awake = worth.limits([row], 1, 5, "eagle"), int(neural), neural
        assert limits.uses_neural(0, 0.8, 1.0, 3) is neural
        assert row.retrieved == pytest.approx(worth.retrieval.of(0.8 * row.calibration))
        limits.clock, limits.ended = [0.0, 0.002], 0.002
        worth.learn([row], finished_cycle(5, 4, 0.011, 0.002), [limits])
    weights = [mean.weight for mean in worth.retrieval.added]
    assert (max(weights) > min(weights)) is not neural
