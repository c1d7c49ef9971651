"""Properties of every selector: restored state, masks, changing pools, pools of one, lossless output."""

from __future__ import annotations

import json

import numpy as np
import pytest

from drafterforge.errors import ConfigError
from drafterforge.selectors import Context
from tests.selectors.world import DEPTH, Text, decode, every_selector, make

VARIANTS = [
    *((name, {}) for name in every_selector()),
    ("normalhedge", {"draw": "sample", "calibration": True, "hybrid": True, "estimator": "ratio_rb", "discount": 0.95}),
    ("hedge", {"granularity": "chunk", "skip": 0.5, "costs": [0.1, 0.2, 0.3], "carry": True}),
    ("ucb1", {"window": 7}),
    ("thompson", {"rounding": "bernoulli", "decay": 0.9}),
]
ALL_VARIANTS = pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=[f"{name}{index}" for index, (name, _) in enumerate(VARIANTS)]
)


@pytest.mark.quick_cases(6)
@ALL_VARIANTS
def test_a_restored_selector_makes_the_same_choices(name, options):
    text = Text()
    chooser = make(name, **options)
    chooser.begin([1], seed=5)
    _, position = decode(chooser, text, 23)
    state = json.loads(json.dumps(chooser.state_dict(), allow_nan=False))
    again = make(name, **options)
    again.load_state_dict(state)
    assert again.state_dict() == chooser.state_dict()
    assert decode(again, text, 100, position, first=23) == decode(chooser, text, 100, position, first=23)
    assert again.state_dict() == chooser.state_dict()


@ALL_VARIANTS
def test_equal_seeds_give_equal_requests_after_any_request(name, options):
    if options.get("carry"):
        return
    runs = []
    chooser = make(name, **options)
    for _ in range(2):
        chooser.begin([1], seed=9)
        runs.append(decode(chooser, Text(), 40))
        chooser.end()
    assert runs[0] == runs[1]


@ALL_VARIANTS
def test_masked_drafters_are_never_chosen(name, options):
    mask = np.array([True, False, True])
    chooser = make(name, **options)
    chooser.begin([1], seed=0)
    choices, _ = decode(chooser, Text(), 60, mask=mask)
    assert 1 not in choices
    with pytest.raises(ConfigError, match=r"^a mask must allow one of 3 drafters, got \[False, False, False\]$"):
        chooser.select(Context(0, 0, np.zeros(3, dtype=bool)))


@ALL_VARIANTS
def test_a_pool_may_change_while_it_runs(name, options):
    text = Text(4)
    chooser = make(name, **options)
    chooser.begin([1], seed=0)
    small = Text(3)
    small.gamma, small.accepted = text.gamma[:3], text.accepted[:3]
    _, position = decode(chooser, small, 20)
    chooser.add_drafter(cost=0.2 if "costs" in options else None)
    _, position = decode(chooser, text, 20, position, first=20)
    leaving = 1 if name == "static" else 0
    chooser.remove_drafter(leaving)
    remaining = [row for row in range(4) if row != leaving]
    small.gamma, small.accepted = text.gamma[remaining], text.accepted[remaining]
    decode(chooser, small, 20, position, first=40)
    assert chooser.num_drafters == len(chooser.drafters) == 3
    state = json.loads(json.dumps(chooser.state_dict()))
    fresh = make(name, **options)
    fresh.drafters = chooser.drafters
    if "costs" in options:
        fresh.costs = chooser.costs
    fresh.load_state_dict(state)


@ALL_VARIANTS
def test_a_pool_of_one_picks_its_drafter(name, options):
    options = options | ({"costs": [0.1]} if "costs" in options else {})
    chooser = make(name, 1, **options)
    chooser.begin([1], seed=0)
    assert set(decode(chooser, Text(1), 30)[0]) == {0}
    with pytest.raises(ConfigError, match="cannot be removed"):
        chooser.remove_drafter(0)


@ALL_VARIANTS
def test_the_output_does_not_depend_on_the_drafters(name, options):
    """A toy at temperature 0: two tokens determine the target's next one, which drafters guess sometimes."""
    rng = np.random.default_rng(0)
    table = rng.integers(0, 7, (7, 7))
    guesses = np.where(rng.random((3, 7, 7)) < np.array([0.9, 0.6, 0.2])[:, None, None], table, 0)

    def follow(rule, text, count):
        text = list(text)
        for _ in range(count):
            text.append(int(rule[text[-2], text[-1]]))
        return text

    chooser = make(name, **options)
    chooser.begin([1], seed=0)
    text, cycle = [1, 2], 0
    while len(text) < 150:
        drafter = chooser.select(Context(cycle, len(text))).drafter
        draft = follow(guesses[drafter], text, DEPTH)[len(text) :]
        truth = follow(table, text, DEPTH + 1)[len(text) :]
        length = 1 + int(np.cumprod([a == b for a, b in zip(draft, truth, strict=False)]).sum())
        position = len(text)
        text += [*draft[: length - 1], truth[length - 1]]
        pairs = [(text[index - 2], text[index - 1]) for index in range(position, len(text))]
        hits = np.array([[float(rule[pair] == table[pair]) for pair in pairs] for rule in guesses])
        toy = Text(3, 1)
        toy.gamma = toy.accepted = np.concatenate((np.zeros((3, position)), hits, np.zeros((3, DEPTH))), axis=1)
        changes = {"overlap": hits[drafter].mean()}
        feedback = toy.feedback(drafter, position, **changes)
        assert feedback.accept_length == length or length == DEPTH + 1
        chooser.observe(feedback)
        cycle += 1
    assert text == follow(table, [1, 2], len(text) - 2)


def test_a_state_of_another_selector_is_refused_in_one_line():
    state = make("hedge", eta=0.5).state_dict()
    for selector_of_state, words in (
        (make("squint"), "selector 'hedge', but this selector has 'squint'"),
        (make("hedge", eta=0.6), "'eta': 0.5"),
        (make("hedge", depth=7, eta=0.5), "depth 4, but this selector has 7"),
        (make("hedge", 4, eta=0.5), "drafters ['d0', 'd1', 'd2'], but this selector has ['d0', 'd1', 'd2', 'd3']"),
    ):
        with pytest.raises(ConfigError) as caught:
            selector_of_state.load_state_dict(state)
        assert words in str(caught.value) and "\n" not in str(caught.value)
