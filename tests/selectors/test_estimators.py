"""Estimators against exact dynamic programmes on a Markov target.  Axes: V tokens, K levels, S samples."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.selectors.estimators import ESTIMATORS, expected_length, geometric_length, length_loss

DEPTH, SAMPLES = 5, 40_000


class Chain:
    """A target p and a drafter q, both [V, V]: probabilities of the next token given the last."""

    def __init__(self, p, q):
        self.p, self.meet = p, np.minimum(p, q)
        self.gamma = self.meet.sum(axis=1)
        self.accepted = np.minimum(1, np.divide(q, p, out=np.zeros_like(p), where=p > 0))

    def exact(self, depth=DEPTH):
        """Mean tokens of a cycle from each token, [V]: accepted prefixes follow min(p, q)."""
        total, alive = np.ones(len(self.p)), np.ones(len(self.p))
        for _ in range(depth):
            alive = self.meet @ alive
            total = total + alive
        return total

    def plugin(self, depth=DEPTH):
        """Mean of the plug-in estimate from each token, [V]: prefixes follow p."""
        total, product = np.ones(len(self.p)), np.ones(len(self.p))
        for _ in range(depth):
            product = self.gamma * (self.p @ product)
            total = total + product
        return total

    def estimates(self, start, rng, depth=DEPTH):
        """Each estimator on texts of the target that follow `start`, {name: [S]}."""
        text = np.full((SAMPLES, depth + 1), start)
        ends = self.p.cumsum(axis=1)
        for level in range(depth):
            text[:, level + 1] = (rng.random((SAMPLES, 1)) > ends[text[:, level]]).sum(axis=1)
        gamma, accepted = self.gamma[text[:, :-1]], self.accepted[text[:, :-1], text[:, 1:]]
        return {name: expected_length(gamma, accepted, name) for name in ESTIMATORS}


def random_chain(seed, sharp=1.0):
    """A drafter that is close to the target after three of six tokens."""
    rng = np.random.default_rng(seed)
    p, noise = rng.dirichlet(np.full(6, sharp), 6), rng.dirichlet(np.full(6, sharp), 6)
    mix = np.where(np.arange(6) < 3, 0.95, 0.4)[:, None]
    return Chain(p, mix * p + (1 - mix) * noise)


def tree_chain(seed, width=2):
    """A drafter that proposes the two likeliest tokens of a noisy target, verified against sampled tokens."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(6, 0.7), 6)
    noisy = p + 0.3 * rng.random((6, 6))
    children = np.argsort(-noisy, axis=1)[:, :width]
    inside = np.zeros((6, 6))
    np.put_along_axis(inside, children, 1.0, axis=1)
    return Chain(p, p * inside)  # then min(1, q / p) is 1 for a child and 0 otherwise


def near(samples, mean):
    return abs(samples.mean() - mean) <= 4 * samples.std() / np.sqrt(len(samples)) + 1e-9


@pytest.mark.parametrize(
    "chain", [random_chain(1), random_chain(0, 0.5), tree_chain(2)], ids=["underrated", "overrated", "tree"]
)
def test_ratio_estimators_are_unbiased_and_the_plug_in_has_its_computed_bias(chain):
    rng = np.random.default_rng(3)
    exact, plugin = chain.exact(), chain.plugin()
    worst = int(np.abs(exact - plugin).argmax())
    assert abs(exact - plugin)[worst] > 0.05
    for start in {0, worst}:
        estimates = chain.estimates(start, rng)
        assert near(estimates["ratio"], exact[start]) and near(estimates["ratio_rb"], exact[start])
        assert near(estimates["plugin"], plugin[start])
        assert estimates["plugin"].var() < estimates["ratio_rb"].var() < estimates["ratio"].var()
    assert not near(chain.estimates(worst, rng)["plugin"], exact[worst])


def test_the_plug_in_cannot_distinguish_drafters_of_an_easy_and_a_hard_branch():
    # From the fork 0 the target takes branch 1 or 2 with equal odds and stays there.  Both drafters accept half at the
    # fork, everything on branch 1 and .3 on branch 2; one drafts branch 1 at the fork, the other branch 2.
    p = np.array([[0, 0.5, 0.5], [0, 1, 0], [0, 0, 1]], dtype=float)
    stay = [[0, 1, 0], [0.7, 0, 0.3]]
    easy, hard = (Chain(p, np.array([fork, *stay])) for fork in ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0]))
    assert easy.exact()[0] == pytest.approx(3.5, abs=1e-12)
    assert hard.exact()[0] == pytest.approx(1.71255, abs=1e-12)
    assert easy.plugin()[0] == pytest.approx(2.606275, abs=1e-12)
    assert hard.plugin()[0] == pytest.approx(2.606275, abs=1e-12)
    rng = np.random.default_rng(0)
    assert near(easy.estimates(0, rng)["ratio_rb"], 3.5) and near(hard.estimates(0, rng)["ratio_rb"], 1.71255)


def test_all_estimators_agree_in_the_mean_at_one_level():
    chain = random_chain(4)
    estimates = chain.estimates(0, np.random.default_rng(0), depth=1)
    assert chain.plugin(1) == pytest.approx(chain.exact(1), abs=1e-12)
    assert all(near(samples, chain.exact(1)[0]) for samples in estimates.values())


def test_at_temperature_zero_all_count_the_leading_hits():
    hits = np.random.default_rng(0).integers(0, 2, (500, DEPTH)).astype(float)
    leading = np.array([1 + [*row, 0].index(0) for row in hits.tolist()])
    for estimator in ESTIMATORS:
        assert expected_length(hits, hits, estimator).tolist() == leading.tolist()


def test_plug_in_equals_the_sum_over_stopping_levels_and_all_stay_between_one_and_depth_plus_one():
    rng = np.random.default_rng(0)
    gamma, accepted = rng.random((2, 200, DEPTH))
    for estimator in ESTIMATORS:
        length = expected_length(gamma, accepted, estimator)
        assert length.min() >= 1 and length.max() <= DEPTH + 1
    padded = np.concatenate((gamma, np.zeros((200, 1))), axis=1)  # nothing is drafted at level K + 1
    before = np.concatenate((np.ones((200, 1)), padded.cumprod(axis=1)[:, :-1]), axis=1)
    slow = (np.arange(1, DEPTH + 2) * (1 - padded) * before).sum(axis=1)
    assert expected_length(gamma, accepted) == pytest.approx(slow)


def test_costs_turn_tokens_per_cycle_into_tokens_per_second():
    lengths, costs = np.array([4.0, 4.0, 5.0]), np.array([0.1, 0.05, 0.1])
    loss = length_loss(lengths, DEPTH, costs)
    assert loss == pytest.approx(1 - lengths / costs / (6 / 0.05))
    assert loss.argmin() == 1 and length_loss(lengths, DEPTH).argmin() == 2
    assert length_loss(lengths, DEPTH, np.ones(3)) == pytest.approx(length_loss(lengths, DEPTH))
    assert geometric_length(np.array([0.0, 0.5, 1.0]), 2) == pytest.approx([1.0, 1.75, 3.0])
