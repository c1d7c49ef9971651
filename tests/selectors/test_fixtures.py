"""Every learner and bandit reproduces the reference's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.selectors import Context, Feedback, learner
from drafterforge.selectors.estimators import ESTIMATORS, expected_length, length_loss
from drafterforge.selectors.learners.normalhedge import normalhedge_probs
from drafterforge.selectors.ucb import ucb1_scores, ucbspec_scores
from tests.selectors.world import FIXTURES, make

SCALARS = FIXTURES["scalars"]
EXACT = {"rel": 0, "abs": 1e-9}


@pytest.mark.parametrize("example", ["A", "B"])
@pytest.mark.parametrize("name", ["normalhedge", "hedge", "adanormalhedge", "squint"])
def test_learners_retrace_the_worked_examples(name, example):
    losses = FIXTURES[example]["losses"]
    policy = learner(name, len(losses[0]), **({"eta": 1.0} if name == "hedge" else {}))
    for loss, row in zip(losses, FIXTURES[example][name], strict=True):
        policy.update(loss)
        assert policy.regrets == pytest.approx(row["R"], **EXACT)
        assert policy.probs == pytest.approx(row["w"], **EXACT)
        assert abs(policy.probs.sum() - 1) < 1e-12 and policy.probs.min() >= 0
        if "c" in row:
            assert normalhedge_probs(policy.regrets)[1] == pytest.approx(row["c"], **EXACT)


def test_estimators_of_the_worked_example():
    gamma, accepted = np.array(SCALARS["gamma"]), np.array(SCALARS["accepted"])
    for estimator in ESTIMATORS:
        assert expected_length(gamma, accepted, estimator) == pytest.approx(SCALARS[estimator], **EXACT)
    assert length_loss(expected_length(gamma, accepted), 5) == pytest.approx(SCALARS["loss"], **EXACT)


@pytest.mark.parametrize("case", SCALARS["ucbspec"])
def test_radius_of_ucbspec(case):
    counts = np.full(case["K"], float(case["n"]))
    scores = ucbspec_scores(np.zeros(case["K"]), counts, case["t"], case["L"], case["delta"])
    assert scores == pytest.approx(case["radius"], **EXACT)


def test_bound_of_metasd():
    case = SCALARS["metasd_ucb"]
    scores = ucb1_scores(np.array([case["mean"]]), np.array([case["n"]]), case["t"], case["beta"])
    assert scores == pytest.approx(case["score"], **EXACT)


def test_losses_and_probabilities_of_exp3spec():
    case = SCALARS["exp3spec"]
    chooser = make("exp3spec", case["K"], case["L"])
    for cycle, (drafter, length) in enumerate(case["pulls"]):
        chooser.select(Context(cycle, 0))
        chooser.observe(Feedback(drafter, 0, length, case["L"]))
    assert chooser.losses == pytest.approx(case["losses"], **EXACT)
    assert chooser.select(Context(4, 0)).probs == pytest.approx(case["probs"], **EXACT)


def test_windowed_ucb1():
    case = SCALARS["ucb1"]
    chooser = make("ucb1", 2, window=case["window"])
    for drafter, rewards in enumerate(case["rewards"]):
        for reward in rewards:
            chooser.learn(drafter, reward)
    assert chooser.scores() == pytest.approx(case["scores"], **EXACT)


def test_fractional_thompson():
    case = SCALARS["thompson"]
    chooser = make("thompson", 2)
    for reward in case["rewards"]:
        chooser.learn(0, reward)
    assert chooser.alpha == pytest.approx([case["alpha"], 1], **EXACT)
    assert chooser.beta == pytest.approx([case["beta"], 1], **EXACT)
