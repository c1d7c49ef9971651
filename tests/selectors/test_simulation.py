"""The simulation chooses like the real selectors and reproduces the reference's regrets."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from drafterforge.selectors import Context, Evaluation, Feedback
from tests.selectors.world import make, simulation

SEEDS = 100
SCRIPT = simulation()
SIMULATED = importlib.import_module("simulated_selectors")


class Live(SCRIPT.SimulatedSelector):
    """Real selectors, one per seed, whose evaluations come two cycles late."""

    def __init__(self, name, **options):
        self.name, self.options = name, options

    def reset(self, seeds, num_drafters):
        super().reset(seeds, num_drafters)
        self.selectors = [make(self.name, num_drafters, SCRIPT.DEPTH, **self.options) for _ in range(seeds)]
        self.gammas = []
        for chooser in self.selectors:
            chooser.begin()

    def select(self, rng):
        return np.array([chooser.select(Context(self.rounds, 0)).drafter for chooser in self.selectors])

    def observe(self, choices, length, gamma):
        self.gammas.append(gamma)
        for seed, chooser in enumerate(self.selectors):
            late, evaluation = self.rounds - SIMULATED.DELAY, None
            if late >= 0:
                values = self.gammas[late][seed]
                evaluation = Evaluation(late * SCRIPT.DEPTH, values, values)
            overlap = float(gamma[seed, choices[seed]].mean())
            position = self.rounds * SCRIPT.DEPTH
            cycle = int(choices[seed]), position, int(length[seed]), SCRIPT.DEPTH
            feedback = Feedback(*cycle, overlap=overlap, evaluation=evaluation)
            chooser.observe(feedback)
        self.rounds += 1


@pytest.mark.parametrize(
    ("simulated", "name", "options"),
    [
        ("NormalHedge argmax", "normalhedge", {"granularity": "chunk"}),
        ("FTL argmax", "ftl", {"granularity": "chunk"}),
        ("UCB1", "ucb1", {}),
        ("UCBSpec", "ucbspec", {}),
        ("MetaSD-UCB", "metasd_ucb", {}),
    ],
)
def test_many_simulated_seeds_choose_like_real_selectors(simulated, name, options):
    makers = {"fast": SCRIPT.SELECTORS[simulated], "real": lambda: Live(name, **options)}
    curves = SCRIPT.regret_curves(makers, 4, 4, cycles=120)
    assert np.array_equal(curves["fast"], curves["real"])


def test_the_oracle_has_no_regret():
    best = np.array([2, 0, 1])
    oracle = SIMULATED.Fixed(best)
    oracle.reset(3, 3)
    assert not SCRIPT.simulate({"oracle": oracle}, best, 3, 50, np.random.default_rng(0))["oracle"].any()


@pytest.mark.slow
def test_regret_of_normalhedge_hardly_grows_with_the_pool():
    small, large = (SCRIPT.regret_curves({"it": SCRIPT.normalhedge}, size, 25)["it"][-1].mean() for size in (2, 32))
    assert large / small <= 4


@pytest.mark.slow
def test_all_pools_have_the_regret_of_the_reference():
    outside, before = [], {}
    for index, size in enumerate(SCRIPT.SIZES):
        curves = SCRIPT.regret_curves(SCRIPT.SELECTORS, size, SEEDS)
        for name, curve in curves.items():
            if not SCRIPT.agrees(curve[-1], SCRIPT.REFERENCE[name][index]):
                outside.append((name, size, curve[-1].mean()))
            if name in ("Thompson", "UCBSpec", "UCB1", "MetaSD-UCB", "EXP3Spec"):
                assert curve[-1].mean() > before.get(name, 0)
                before[name] = curve[-1].mean()
    assert outside == []


@pytest.mark.slow
def test_near_ties_have_the_regret_of_the_reference():
    for index, size in enumerate(SCRIPT.NEAR_SIZES):
        makers = {name: SCRIPT.SELECTORS[name] for name in SCRIPT.NEAR_REFERENCE}
        curves = SCRIPT.regret_curves(makers, size, SEEDS, rest=SCRIPT.NEAR)
        for name, references in SCRIPT.NEAR_REFERENCE.items():
            assert SCRIPT.agrees(curves[name][-1], references[index]), (name, size)


@pytest.mark.slow
def test_on_mixed_requests_normalhedge_needs_its_reset():
    regrets = SCRIPT.queries(seeds=3)
    for name, reference in SCRIPT.QUERY_REFERENCE.items():
        assert regrets[name].mean() == pytest.approx(reference, rel=0.15), name


def test_figures_are_drawn(tmp_path):
    rng = np.random.default_rng(0)
    curves = {size: {name: rng.random((20, 3)).cumsum(axis=0) for name in ("UCB1", "random")} for size in (2, 4)}
    SCRIPT.plot(tmp_path, curves)
    assert {path.name for path in tmp_path.iterdir()} == {"cumulative_regret.png", "regret_by_pool_size.png"}
