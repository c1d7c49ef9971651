"""The default selector in simulated worlds: no regret where nothing changes, tracking where drafters hit in bursts."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from drafterforge.selectors.hindsight import signal_strength
from tests.selectors.world import simulation

simulation()  # makes scripts importable
WORLDS = importlib.import_module("simulated_worlds")
SEEDS = 2


@pytest.fixture(scope="module")
def outcomes():
    names = (WORLDS.DEFAULT, WORLDS.TRACKER, "hedgespec-paper")
    return {world: WORLDS.replay(world, names, SEEDS) for world in ("stationary", "bursty")}


def test_the_default_has_sublinear_regret_where_stationary_and_the_trackers_mat_in_bursts(outcomes):
    assert WORLDS.failures(outcomes) == []


def test_the_papers_algorithm_has_sublinear_regret_where_stationary(outcomes):
    outcome = outcomes["stationary"]["hedgespec-paper"]
    assert outcome.last < WORLDS.MOST_REGRET * outcome.first


def test_discounted_normalhedge_fails_where_stationary(outcomes):
    """So the test of the default can fail."""
    steady = {WORLDS.DEFAULT: outcomes["stationary"][WORLDS.TRACKER]}
    (line,) = WORLDS.failures({**outcomes, "stationary": steady})
    assert line.startswith("stationary, hedgespec: regret ")


def test_the_best_drafter_alone_has_no_regret():
    world = WORLDS.WORLDS["bursty"](np.random.default_rng(0))
    answer = world.counterfactual()
    cycles = answer.play(lambda _: 1)
    assert WORLDS._cycles_by_token(cycles)[[0, -1]] == pytest.approx([1 / cycles[0].accept_length, len(cycles)])
    assert sum(cycle.accept_length for cycle in cycles) == answer.num_tokens
    hits, root = world.hits[6], 5
    run = 0
    while run < 10 and hits[root + 1 + run]:
        run += 1
    assert answer.outcomes[0].accept_length[6, root] == 1 + run


def test_signal_strength_is_the_squared_gap_over_the_larger_variance():
    rewards = np.array([[1.0, 1.0, 0.0, 0.0], [0.75, 0.75, 0.75, 0.75], [0.5, 0.0, 0.5, 0.0]])
    assert signal_strength(rewards, 1) == pytest.approx([0.25**2 / 0.25, 0.0, 0.5**2 / 0.0625])


def test_divergence_is_the_stronger_signal_unless_drafters_alternate():
    for world in ("stationary", "bursty", "drifting"):
        signals = WORLDS.signal_table(world, 2)
        assert signals["BD"][0] > signals["BE"][0] and signals["BD"][1] > 0.5
