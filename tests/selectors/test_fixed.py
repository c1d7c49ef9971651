"""Selectors without learning, and the best drafter in hindsight."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.errors import ConfigError
from drafterforge.selectors import Context, selector
from drafterforge.selectors.hindsight import best_in_hindsight, regret
from tests.selectors.world import make


def picks(chooser, cycles=5, mask=None):
    return [chooser.select(Context(cycle, 0, mask)).drafter for cycle in range(cycles)]


def test_static_picks_the_named_drafter_or_the_first():
    assert picks(make("static", drafter="d2")) == [2] * 5
    assert picks(make("static")) == [0] * 5
    assert picks(make("static", drafter="d2"), mask=np.array([False, True, False])) == [1] * 5


def test_static_follows_its_drafter_when_others_are_removed_and_refuses_its_removal():
    chooser = make("static", drafter="d2")
    chooser.remove_drafter(0)
    assert picks(chooser) == [1] * 5
    with pytest.raises(ConfigError, match="'d2' is the one that selector=static selects"):
        chooser.remove_drafter(1)


def test_random_picks_uniformly():
    chooser = make("random", 4)
    chooser.begin(seed=0)
    counts = np.bincount(picks(chooser, 4000), minlength=4)
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(4000 * 0.25 * 0.75)
    masked = picks(chooser, 200, mask=np.array([True, False, True, False]))
    assert set(masked) == {0, 2}


def test_the_router_is_asked_once_per_prompt():
    prompts = []

    def route(prompt):
        prompts.append(prompt)
        return np.array([0.1, 0.2, 0.7]) if prompt[0] else 1

    chooser = make("router", route=route)
    for prompt, drafter in (([1, 2], 2), ([0], 1)):
        chooser.begin(prompt)
        assert picks(chooser) == [drafter] * 5
    assert prompts == [[1, 2], [0]]
    sampled = make("router", route=route, draw="sample")
    sampled.begin([1], seed=0)
    assert np.bincount(picks(sampled, 3000)) / 3000 == pytest.approx([0.1, 0.2, 0.7], abs=0.04)


@pytest.mark.parametrize(
    "answer", [3, -1, 0.5, float("nan"), [0.5, 0.5], [0, 0, 0], [0.5, -0.1, 0.6], [0.5, 0.5, np.nan]]
)
def test_an_invalid_answer_of_a_router_is_refused_in_one_line(answer):
    with pytest.raises(ConfigError, match=r"^route must .*, got .*$"):
        make("router", route=lambda prompt: answer).begin([1])


def test_the_oracle_takes_an_index_a_name_a_plan_or_a_function_of_the_prompt():
    for best, choices in (
        (1, [1] * 5),
        ("d2", [2] * 5),
        ([2, 0, 1], [2, 0, 1, 1, 1]),
        (lambda prompt: prompt[0], [2] * 5),
    ):
        chooser = make("oracle", best=best)
        chooser.begin([2])
        assert picks(chooser) == choices
    with pytest.raises(ConfigError, match=r"^best must name one of 3 drafters, counted from 0, got 3$"):
        make("oracle", best=3)


def test_hindsight_of_a_small_table():
    losses = np.array([[0.1, 0.5, 0.9], [0.9, 0.2, 0.3], [0.4, 0.3, 0.1]])
    assert best_in_hindsight(losses) == 1
    assert regret(losses, np.array([2, 2, 2])) == pytest.approx([0.4, 0.5, 0.3])
    assert regret(losses, np.full(3, 1)).tolist() == [0, 0, 0]
    assert best_in_hindsight(np.zeros((4, 3))) == 0


def test_a_router_s_probabilities_are_played_and_required():
    chooser = selector("router", ["a", "b", "c"], 4)
    with pytest.raises(ConfigError, match="needs a router"):
        chooser.begin([1, 2])
    chooser.advise([0.1, 0.7, 0.2])
    chooser.begin([1, 2])
    assert chooser.select(Context(0, 0)).drafter == 1


def test_a_router_s_probabilities_count_as_prior_rounds_of_a_learner():
    for prior, expected in ((0, 0), (5, 2)):
        chooser = selector("hedge", ["a", "b", "c"], 4, prior=prior)
        chooser.advise([0.1, 0.1, 0.8])
        chooser.begin([1, 2])
        assert chooser.select(Context(0, 0)).drafter == expected
