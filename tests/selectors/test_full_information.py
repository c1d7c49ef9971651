"""HedgeSpec's policy: its rounds, delays, objectives and costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drafterforge.errors import ConfigError
from drafterforge.selectors import Context, Evaluation, Feedback, Needs, learner
from drafterforge.selectors.estimators import ESTIMATORS, expected_length, length_loss
from drafterforge.selectors.learners import LEARNERS
from tests.selectors.world import DEPTH, Text, decode, every_selector, make


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_best_drafter_is_found_within_a_request(name, estimator):
    text = Text(means=[0.4, 0.85, 0.5])
    chooser = make(name, estimator=estimator)
    chooser.begin(seed=0)
    choices, _ = decode(chooser, text, 150)
    assert np.mean(np.array(choices[75:]) == 1) > 0.9


@pytest.mark.parametrize("granularity", ["token", "chunk"])
@pytest.mark.parametrize("objective", ["length", "token"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_policy_equals_its_learner_updated_round_by_round(granularity, objective, estimator):
    text = Text()
    chooser = make("hedge", granularity=granularity, objective=objective, estimator=estimator, draw="sample", eta=0.4)
    chooser.begin(seed=0)
    distributions, begins, position = [], [], 0
    for cycle in range(30):
        choice = chooser.select(Context(cycle, position))
        distributions.append(choice.probs)
        begins.append(position)
        feedback = text.feedback(choice.drafter, position)
        chooser.observe(feedback)
        position += feedback.accept_length
    slow = learner("hedge", 3, eta=0.4)
    reach = DEPTH if objective == "length" else 1
    for start in range(position - reach + 1):
        if granularity == "chunk" and start not in begins:
            continue
        here = slice(start, start + reach)
        length = expected_length(text.gamma[:, here], text.accepted[:, here], estimator)
        loss = length_loss(length, DEPTH) if objective == "length" else 2 - length
        slow.update(loss, probs=distributions[np.searchsorted(begins, start, side="right") - 1])
    assert chooser.probs == pytest.approx(slow.probs, rel=1e-12)


def test_late_evaluations_give_the_same_probabilities():
    text, probs = Text(), []
    for eval_interval in (1, 5):
        chooser = make("adanormalhedge")
        chooser.begin()
        position = sent = 0
        for cycle in range(40):
            chooser.select(Context(cycle, position))
            feedback = text.feedback(0, position)
            position += feedback.accept_length
            late = None
            if cycle % eval_interval == eval_interval - 1:
                late = Evaluation(sent, text.gamma[:, sent:position], text.accepted[:, sent:position])
                sent = position
            chooser.observe(replace(feedback, evaluation=late))
        probs.append(chooser.learner.rounds)
    assert probs[0] == probs[1] > 0


def test_the_end_of_an_answer_drops_incomplete_rounds():
    text = Text()
    chooser = make("normalhedge")
    chooser.begin()
    chooser.select(Context(0, 0))
    chooser.observe(text.feedback(0, 0))
    rounds = chooser.learner.rounds
    chooser.end()
    assert chooser.queue.open_rounds().positions.tolist() == []
    assert chooser.learner.rounds == rounds


@pytest.mark.parametrize("name", ["hedgespec-paper", "normalhedge"])
def test_a_drafter_that_is_alone_leaves_nothing_to_be_evaluated(name):
    text, chooser = Text(num_drafters=1), make(name, 1, **({} if name == "hedgespec-paper" else {"calibration": True}))
    chooser.begin()
    before, position = chooser.state_dict()["parts"], 0
    for cycle in range(20):
        chooser.select(Context(cycle, position))
        assert not chooser.needs.evaluation
        feedback = replace(text.feedback(0, position), evaluation=None)
        chooser.observe(feedback)
        position += feedback.accept_length
    assert chooser.state_dict()["parts"] == before and not getattr(chooser, "waiting", [])


def test_drafters_that_were_not_evaluated_sleep():
    text = Text(num_drafters=3)
    text.gamma[2] = text.accepted[2] = np.nan
    two, three = make("hedge", 2, eta=0.1), make("hedge", 3, eta=0.1)
    for chooser in (two, three):
        chooser.begin()
        position = 0
        for cycle in range(20):
            mask = np.arange(chooser.num_drafters) < 2
            chooser.select(Context(cycle, position, mask))
            feedback = text.feedback(0, position)
            rows = slice(chooser.num_drafters)
            evaluation = Evaluation(position, feedback.evaluation.gamma[rows], feedback.evaluation.accepted[rows])
            chooser.observe(replace(feedback, evaluation=evaluation))
            position += feedback.accept_length
    assert three.learner.regrets == pytest.approx([*two.learner.regrets, 0.0])


FULL = [name for name in every_selector() if make(name).needs.evaluation]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("objective", ["length", "token"])
def test_costs_make_a_cheap_drafter_beat_a_better_accepted_one(name, objective):
    text = Text(2, means=[0.75, 0.6])
    for costs, best in ((None, 0), ([1.0, 1.0], 0), ([0.1, 0.05], 1)):
        chooser = make(name, 2, costs=costs, objective=objective)
        chooser.begin()
        choices, _ = decode(chooser, text, 150)
        assert np.mean(np.array(choices) == best) > 0.6


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize(("rates", "costs", "best"), [((0.7, 0.75), (1.0, 2.0), 0), ((0.5, 0.9), (1.0, 1.5), 1)])
def test_costs_count_in_incomplete_rounds_too(name, rates, costs, best):
    """Greedy hits of 0 and 1: neither the acceptance rate nor the cost alone decides."""
    text = Text(2)
    text.accepted = text.gamma = (np.random.default_rng(0).random(text.gamma.shape) < np.array(rates)[:, None]) * 1.0
    chooser = make(name, 2, costs=costs)
    chooser.begin()
    choices, _ = decode(chooser, text, 200)
    assert np.mean(np.array(choices) == best) > 0.7


def test_incomplete_rounds_with_costs_use_levels_and_calibration():
    shallow = make("hedgespec", 2, levels=[1, 4], costs=[1.0, 1.0], calibration=True)
    shallow.begin()
    shallow.select(Context(0, 0))
    ones = np.ones((2, 2))
    shallow.observe(Feedback(0, 0, 2, DEPTH, evaluation=Evaluation(0, ones, ones)))
    losses = shallow._open_losses(shallow.queue.open_rounds())
    assert losses == pytest.approx(np.array([[1 - 2 / 5, 0.0]] * 2))
    shallow.calibration.realised[1, 1:] = 0.5
    length = 2 + 0.5 + 0.25 + 0.125
    assert shallow._open_losses(shallow.queue.open_rounds())[0] == pytest.approx([1 - 2 / 5, 1 - length / 5])


def test_hybrid_counts_incomplete_rounds_by_their_first_token():
    chooser = make("hedge", 2, eta=1.0, hybrid=True)
    chooser.begin()
    chooser.select(Context(0, 0))
    gamma = np.array([[0.2, 0.3], [0.9, 0.8]])
    chooser.observe(Feedback(0, 0, 2, DEPTH, evaluation=Evaluation(0, gamma, gamma)))
    assert chooser.learner.probs.tolist() == [0.5, 0.5]
    weights = np.exp(-(1 - gamma).sum(axis=1))
    assert chooser.select(Context(1, 2)).probs == pytest.approx(weights / weights.sum())
    assert chooser.learner.probs.tolist() == [0.5, 0.5]


def test_skip_needs_no_evaluation_while_the_learner_is_certain():
    text, requests = Text(means=[0.9, 0.2, 0.2]), []
    chooser = make("normalhedge", skip=0.9, skip_cycles=6)
    chooser.begin()
    position = 0
    for cycle in range(80):
        requests.append(chooser.needs.evaluation)
        drafter = chooser.select(Context(cycle, position)).drafter
        changes = {} if requests[-1] else {"evaluation": None}
        feedback = text.feedback(drafter, position, **changes)
        chooser.observe(feedback)
        position += feedback.accept_length
    assert requests[0] and 0.05 < np.mean(requests) < 0.6
    runs = "".join("x" if need else "." for need in requests).strip(".").replace("x", " ").split()
    assert set(map(len, runs)) == {6}
    assert make("normalhedge").needs == Needs(evaluation=True)


def test_each_request_starts_anew_without_carry():
    text = Text()
    for carry in (False, True):
        chooser = make("normalhedge", carry=carry)
        chooser.begin(seed=1)
        _, position = decode(chooser, text, 40)
        chooser.end()
        before = chooser.probs
        chooser.begin(seed=2)
        assert chooser.probs.tolist() == (before.tolist() if carry else [1 / 3] * 3)
        decode(chooser, text, 5, position + 7)


def test_a_drafter_of_fewer_levels_is_not_credited_with_more():
    chooser = make("normalhedge", 2, levels=[4, 1])
    chooser.begin(seed=0)
    chooser.select(Context(0, 0))
    hits = np.array([[1.0] * 4, [1.0] * 4])
    chooser.observe(Feedback(0, 0, 5, DEPTH, evaluation=Evaluation(0, hits, hits)))
    assert chooser.probs.tolist() == [1.0, 0.0]
    for levels in ([4], [5, 1], [-1, 4]):
        with pytest.raises(ConfigError, match="levels needs a number from 0 to 4 for each of 2"):
            make("normalhedge", 2, levels=levels)


def test_a_request_begins_with_the_drafter_that_predicted_the_prompt_best():
    chooser = make("hedgespec-prompt", 3)
    assert (
        chooser.needs.prompt and not make("hedgespec", 3).needs.prompt and not make("hedgespec-prompt", 1).needs.prompt
    )
    for hits, best in (([0.4, 0.6, 0.5], 1), ([0.4, np.nan, 0.5], 2)):  # the second was not judged
        chooser.read_prompt(np.array(hits))
        chooser.begin()
        assert chooser.select(Context(0, 0)).drafter == best
    chooser.read_prompt(np.full(3, np.nan))
    chooser.begin()
    assert chooser.learner.rounds == 0 and chooser.probs == pytest.approx(np.full(3, 1 / 3))


def test_a_router_s_advice_replaces_what_the_prompt_shows():
    for prior, rounds, best in ((4, 4, 0), (0, 16, 1)):  # advice that counts for no round replaces nothing
        chooser = make("hedgespec-prompt", 3, prior=prior)
        chooser.read_prompt(np.array([0.2, 0.9, 0.2]))
        chooser.advise(np.array([0.9, 0.05, 0.05]))
        chooser.begin()
        assert chooser.learner.rounds == rounds and chooser.select(Context(0, 0)).drafter == best


def test_what_a_prompt_showed_is_forgotten_when_the_next_request_begins():
    chooser = make("hedgespec-prompt", 2)
    chooser.read_prompt(np.array([0.2, 0.9]))
    chooser.begin()
    chooser.end()
    chooser.remove_drafter(0)  # the selector waits for another request while the pool changes
    chooser.begin()
    assert chooser.learner.rounds == 0


def test_a_slow_drafter_has_to_predict_the_prompt_better():
    for costs, best in ((None, 1), ([1.0, 1.0], 1), ([0.1, 0.2], 0)):
        chooser = make("hedgespec-prompt", 2, costs=costs)
        chooser.read_prompt(np.array([0.5, 0.6]))
        chooser.begin()
        assert chooser.select(Context(0, 0)).drafter == best
