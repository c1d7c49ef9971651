"""Properties of every learner, and the closed forms of Squint and AdaNormalHedge."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.selectors import learner
from drafterforge.selectors.learners import LEARNERS
from drafterforge.selectors.learners.adanormalhedge import adanormalhedge_probs
from drafterforge.selectors.learners.normalhedge import normalhedge_probs
from drafterforge.selectors.learners.squint import squint_probs

ALL_LEARNERS = pytest.mark.parametrize("name", LEARNERS)
SINGLE_LEARNERS = pytest.mark.parametrize("name", [name for name in LEARNERS if name != "mixture"])


def train_learner(name, losses, **options):
    policy = learner(name, losses.shape[1], **options)
    for loss in losses:
        policy.update(loss)
    return policy


@ALL_LEARNERS
def test_the_probabilities_find_the_best_drafter_and_sum_to_one(name):
    losses = np.random.default_rng(0).random((2000, 5)) * np.array([1, 1, 0.5, 1, 1])
    probs = train_learner(name, losses).probs
    assert probs.argmax() == 2 and probs[2] > 0.9
    assert abs(probs.sum() - 1) < 1e-12 and probs.min() >= 0


@pytest.mark.quick_cases(5)
@ALL_LEARNERS
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0])
def test_long_and_tiny_histories_stay_finite(name, scale):
    policy = train_learner(name, scale * np.eye(4)[np.random.default_rng(0).integers(0, 3, 1500)])
    assert np.isfinite(policy.probs).all() and abs(policy.probs.sum() - 1) < 1e-12
    assert policy.probs.min() >= 0


@ALL_LEARNERS
def test_one_drafter_has_all_the_weight(name):
    assert train_learner(name, np.random.default_rng(0).random((20, 1))).probs.tolist() == [1.0]


@SINGLE_LEARNERS
def test_a_discount_forgets(name):
    losses = np.concatenate((np.tile([0.0, 1.0], (100, 1)), np.tile([1.0, 0.0], (30, 1))))
    assert train_learner(name, losses, discount=0.9).probs.argmax() == 1


@SINGLE_LEARNERS
def test_sleeping_drafters_keep_their_regret_and_the_others_learn_without_them(name):
    policy = train_learner(name, np.random.default_rng(0).random((6, 3)))
    before, probs = policy.regrets.copy(), policy.probs
    policy.update(np.array([0.2, np.nan, 0.6]), awake=np.array([True, False, True]))
    shares = probs[[0, 2]] / probs[[0, 2]].sum()
    assert policy.regrets - before == pytest.approx([shares @ [0.2, 0.6] - 0.2, 0.0, shares @ [0.2, 0.6] - 0.6])
    policy.update(np.full(3, np.nan), awake=np.zeros(3, dtype=bool))
    assert policy.rounds == 7


@ALL_LEARNERS
@pytest.mark.parametrize(
    "losses", [[0.1, math.nan], [0.1, 1.1], [-0.1, 0.2], [0.1], [[0.1, 0.2]], [math.inf, 0.0], ["a", "b"]]
)
def test_invalid_losses_are_refused_in_one_line(name, losses):
    policy = learner(name, 2)
    with pytest.raises(DrafterforgeError, match=r"^2 losses in \[0, 1\] are needed, got .*$"):
        policy.update(np.array(losses))
    assert policy.rounds == 0


@ALL_LEARNERS
def test_a_new_drafter_starts_without_regret_and_the_others_keep_theirs(name):
    policy = train_learner(name, np.random.default_rng(0).random((20, 3)))
    before = policy.regrets.copy()
    policy.add_drafter()
    assert np.array_equal(policy.regrets, [*before, np.zeros_like(before[0])])
    policy.remove_drafter(1)
    assert np.array_equal(policy.regrets, [before[0], before[2], np.zeros_like(before[0])])
    assert policy.probs.shape == (3,) and abs(policy.probs.sum() - 1) < 1e-12


def test_a_mixture_of_one_discount_is_normalhedge_with_it():
    losses = np.random.default_rng(0).random((60, 4))
    mixture = train_learner("mixture", losses, discounts=[0.9])
    assert mixture.probs == pytest.approx(train_learner("normalhedge", losses, discount=0.9).probs, rel=1e-9)


def test_a_mixture_weighs_its_learners_by_their_losses_where_cycles_begin():
    losses = np.random.default_rng(1).random((40, 3))
    policies = [learner("normalhedge", 3, discount=discount) for discount in (1.0, 0.5)]
    mixture, excess = learner("mixture", 3, discounts=[1.0, 0.5]), np.zeros(2)
    for number, loss in enumerate(losses):
        probs = np.array([policy.probs for policy in policies])
        weights = normalhedge_probs(excess)[0]
        assert mixture.probs == pytest.approx(weights @ probs, abs=1e-9)
        excess += (weights @ probs @ loss - probs @ loss) * (number % 3 == 0)
        mixture.update(loss, begins_cycle=number % 3 == 0)
        for policy in policies:
            policy.update(loss)


def test_a_mixture_lets_drafters_sleep():
    mixture = train_learner("mixture", np.random.default_rng(0).random((6, 3)), discounts=[1.0, 0.5])
    before = mixture.regrets.copy()
    mixture.update(np.array([0.2, np.nan, 0.6]), awake=np.array([True, False, True]))
    assert mixture.regrets[1] == pytest.approx(before[1] * [1.0, 0.5]) and mixture.rounds == 7
    with pytest.raises(ConfigError, match=r"^discounts must be a list of numbers, got 0.5$"):
        learner("mixture", 3, discounts=0.5)


def test_hedge_takes_the_rate_of_its_horizon_or_of_the_rounds_so_far():
    losses = np.random.default_rng(0).random((50, 4))
    total = losses.sum(axis=0)
    for options, rounds in (({}, 50), ({"horizon": 400}, 400)):
        weights = np.exp(-math.sqrt(8 * math.log(4) / rounds) * total)
        assert train_learner("hedge", losses, **options).probs == pytest.approx(weights / weights.sum())


def closed_squint(regret, square):
    """The integral of exp(eta R - eta^2 V) over [0, 1/2]."""
    if square == 0:
        return 0.5 if regret == 0 else math.expm1(regret / 2) / regret
    root = math.sqrt(square)
    spread = math.erf(regret / (2 * root)) - math.erf((regret - square) / (2 * root))
    return math.sqrt(math.pi) / (2 * root) * math.exp(regret**2 / (4 * square)) * spread


def test_squint_with_the_improper_prior_equals_its_closed_form():
    regrets = np.array([0.0, 0.3, -1.2, 4.0, 2.0, 0.0, 1.5, -2.0])
    squares = np.array([0.2, 0.5, 3.0, 2.0, 40.0, 0.0, 0.0, 0.0])
    slow = np.array([closed_squint(r, v) for r, v in zip(regrets, squares, strict=True)])
    assert squint_probs(regrets, squares, "improper") == pytest.approx(slow / slow.sum(), rel=1e-9)


def test_squint_with_the_uniform_prior_equals_a_fine_sum_even_for_large_regrets():
    regrets = np.array([60.0, 58.0, -300.0, 0.0, 5000.0, 4999.0])[:, None]
    squares = np.array([200.0, 180.0, 400.0, 0.1, 30000.0, 29000.0])[:, None]
    eta = (np.arange(200_000) + 0.5) / 400_000
    for rows in (slice(0, 4), slice(4, 6)):
        exponent = eta * regrets[rows] - eta**2 * squares[rows]
        slow = (eta * np.exp(exponent - exponent.max())).sum(axis=1)
        probs = squint_probs(regrets[rows, 0], squares[rows, 0])
        assert probs == pytest.approx(slow / slow.sum(), rel=1e-6, abs=1e-15)


def test_adanormalhedge_is_its_formula_and_uniform_where_that_is_zero():
    regrets, spreads = np.array([0.4, 2.0, -0.5, -3.0]), np.array([1.0, 4.0, 2.0, 5.0])

    def phi(regret):
        return np.exp(np.maximum(regret, 0) ** 2 / (3 * (spreads + 1)))

    slow = (phi(regrets + 1) - phi(regrets - 1)) / 2
    assert adanormalhedge_probs(regrets, spreads) == pytest.approx(slow / slow.sum())
    assert adanormalhedge_probs(np.full(3, -5.0), np.full(3, 5.0)).tolist() == [1 / 3] * 3
