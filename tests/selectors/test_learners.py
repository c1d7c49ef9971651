"""What holds for every learner, and the closed forms of Squint and AdaNormalHedge."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors import learner
from drafterforge.selectors.learners import LEARNERS
from drafterforge.selectors.learners.adanormalhedge import adanormalhedge_probs
from drafterforge.selectors.learners.squint import squint_probs

EVERY = pytest.mark.parametrize("name", LEARNERS)


def taught(name, losses, **options):
    made = learner(name, losses.shape[1], **options)
    for loss in losses:
        made.update(loss)
    return made


@EVERY
def test_the_law_finds_the_best_drafter_and_sums_to_one(name):
    losses = np.random.default_rng(0).random((2000, 5)) * np.array([1, 1, 0.5, 1, 1])
    probs = taught(name, losses).probs
    assert probs.argmax() == 2 and probs[2] > 0.9
    assert abs(probs.sum() - 1) < 1e-12 and probs.min() >= 0


@pytest.mark.quick_cases(5)
@EVERY
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0])
def test_long_and_tiny_histories_stay_finite(name, scale):
    made = taught(name, scale * np.eye(4)[np.random.default_rng(0).integers(0, 3, 1500)])
    assert np.isfinite(made.probs).all() and abs(made.probs.sum() - 1) < 1e-12
    assert made.probs.min() >= 0


@EVERY
def test_one_drafter_has_all_the_weight(name):
    assert taught(name, np.random.default_rng(0).random((20, 1))).probs.tolist() == [1.0]


@EVERY
def test_a_discount_forgets(name):
    losses = np.concatenate((np.tile([0.0, 1.0], (100, 1)), np.tile([1.0, 0.0], (30, 1))))
    assert taught(name, losses, discount=0.9).probs.argmax() == 1


@EVERY
def test_sleeping_drafters_keep_their_regret_and_others_learn_as_if_alone(name):
    made = taught(name, np.random.default_rng(0).random((6, 3)))
    before, law = made.regrets.copy(), made.probs
    made.update(np.array([0.2, np.nan, 0.6]), awake=np.array([True, False, True]))
    shares = law[[0, 2]] / law[[0, 2]].sum()
    assert made.regrets - before == pytest.approx([shares @ [0.2, 0.6] - 0.2, 0.0, shares @ [0.2, 0.6] - 0.6])
    made.update(np.full(3, np.nan), awake=np.zeros(3, dtype=bool))
    assert made.rounds == 7


@EVERY
@pytest.mark.parametrize(
    "losses", [[0.1, math.nan], [0.1, 1.1], [-0.1, 0.2], [0.1], [[0.1, 0.2]], [math.inf, 0.0], ["a", "b"]]
)
def test_losses_that_are_no_losses_are_refused_in_one_line(name, losses):
    made = learner(name, 2)
    with pytest.raises(DrafterforgeError, match=r"^2 losses in \[0, 1\] are needed, got .*$"):
        made.update(np.array(losses))
    assert made.rounds == 0


@EVERY
def test_a_newcomer_enters_neutral_and_others_keep_what_they_have(name):
    made = taught(name, np.random.default_rng(0).random((20, 3)))
    before = made.regrets.copy()
    made.add_drafter()
    assert made.regrets.tolist() == [*before.tolist(), 0.0]
    made.remove_drafter(1)
    assert made.regrets.tolist() == [before[0], before[2], 0.0]
    assert made.probs.shape == (3,) and abs(made.probs.sum() - 1) < 1e-12


def test_hedge_takes_the_rate_of_its_horizon_or_of_the_rounds_so_far():
    losses = np.random.default_rng(0).random((50, 4))
    total = losses.sum(axis=0)
    for options, rounds in (({}, 50), ({"horizon": 400}, 400)):
        weights = np.exp(-math.sqrt(8 * math.log(4) / rounds) * total)
        assert taught("hedge", losses, **options).probs == pytest.approx(weights / weights.sum())


def closed_squint(regret, square):
    """The integral of exp(eta R - eta^2 V) over [0, 1/2]."""
    if square == 0:
        return 0.5 if regret == 0 else math.expm1(regret / 2) / regret
    root = math.sqrt(square)
    spread = math.erf(regret / (2 * root)) - math.erf((regret - square) / (2 * root))
    return math.sqrt(math.pi) / (2 * root) * math.exp(regret**2 / (4 * square)) * spread


def test_squint_with_the_improper_prior_is_its_closed_form():
    regrets = np.array([0.0, 0.3, -1.2, 4.0, 2.0, 0.0, 1.5, -2.0])
    squares = np.array([0.2, 0.5, 3.0, 2.0, 40.0, 0.0, 0.0, 0.0])
    slow = np.array([closed_squint(r, v) for r, v in zip(regrets, squares, strict=True)])
    assert squint_probs(regrets, squares, "improper") == pytest.approx(slow / slow.sum(), rel=1e-9)


def test_squint_with_the_uniform_prior_is_a_fine_sum_even_for_large_numbers():
    regrets = np.array([60.0, 58.0, -300.0, 0.0, 5000.0, 4999.0])[:, None]
    squares = np.array([200.0, 180.0, 400.0, 0.1, 30000.0, 29000.0])[:, None]
    eta = (np.arange(200_000) + 0.5) / 400_000
    for rows in (slice(0, 4), slice(4, 6)):
        exponent = eta * regrets[rows] - eta**2 * squares[rows]
        slow = (eta * np.exp(exponent - exponent.max())).sum(axis=1)
        law = squint_probs(regrets[rows, 0], squares[rows, 0])
        assert law == pytest.approx(slow / slow.sum(), rel=1e-6, abs=1e-15)


def test_adanormalhedge_is_its_formula_and_uniform_where_that_is_zero():
    regrets, spreads = np.array([0.4, 2.0, -0.5, -3.0]), np.array([1.0, 4.0, 2.0, 5.0])

    def phi(regret):
        return np.exp(np.maximum(regret, 0) ** 2 / (3 * (spreads + 1)))

    slow = (phi(regrets + 1) - phi(regrets - 1)) / 2
    assert adanormalhedge_probs(regrets, spreads) == pytest.approx(slow / slow.sum())
    assert adanormalhedge_probs(np.full(3, -5.0), np.full(3, 5.0)).tolist() == [1 / 3] * 3
