"""Bandits: their statistics, exploration, windows and state."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors import Context, Feedback, Needs
from drafterforge.selectors.ucb import ucb1_scores
from tests.selectors.world import DEPTH, Text, decode, make, simulation

NO_MASK = Context(0, 0)
LEARNS = ["ucb1", "ucb1_sliding", "ucb1_discounted", "ucbspec", "thompson", "exp3spec", "metasd_ucb", "metasd_exp3"]


@pytest.mark.parametrize("name", ["ucb1", "ucb1_sliding", "ucb1_discounted", "ucbspec", "metasd_ucb"])
def test_each_drafter_is_played_once_first(name):
    chooser = make(name, 5)
    chooser.begin()
    assert decode(chooser, Text(5), 5)[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", [*LEARNS, "metasd_halving"])
def test_a_clear_winner_is_played_most(name):
    tuned = {"ucbspec": {"scale": 0.1}, "exp3spec": {"scale": 4.0}, "metasd_exp3": {"scale": 4.0}}
    chooser = make(name, 3, **tuned.get(name, {"c": 0.1} if name.startswith("ucb1") else {}))
    chooser.begin(seed=0)
    choices, _ = decode(chooser, Text(3, 4000, means=[0.1, 0.95, 0.1]), 600)
    assert np.bincount(choices[300:], minlength=3).argmax() == 1


def slow_scores(history, num_drafters, c, window, windowing, discount):
    means, counts, rounds = np.zeros(num_drafters), np.zeros(num_drafters), float(len(history))
    recent = history[-window:] if window and windowing == "rounds" else history
    for drafter in range(num_drafters):
        played = [index for index, (who, _) in enumerate(recent) if who == drafter]
        counted = played[-window:] if window else played
        weights = [discount ** (len(recent) - 1 - index) for index in counted]
        rewards = [recent[index][1] for index in counted]
        counts[drafter] = sum(weights) if discount < 1 else len(played)
        means[drafter] = np.average(rewards, weights=weights) if played else 0
    rounds = counts.sum() if discount < 1 else min(rounds, window) if windowing == "rounds" and window else rounds
    return ucb1_scores(means, counts, rounds, c)


@pytest.mark.parametrize(
    ("window", "windowing", "discount"),
    [(0, "arm", 1.0), (5, "arm", 1.0), (5, "rounds", 1.0), (60, "rounds", 1.0), (0, "arm", 0.9)],
)
def test_ucb1_scores_are_those_of_its_history(window, windowing, discount):
    rng, history = np.random.default_rng(0), []
    chooser = make("ucb1", 3, c=0.7, window=window, windowing=windowing, discount=discount)
    for _ in range(50):
        drafter, reward = int(rng.integers(0, 3)), float(rng.random())
        history.append((drafter, reward))
        chooser.learn(drafter, reward)
        slow = slow_scores(history, 3, 0.7, window, windowing, discount)
        assert chooser.scores() == pytest.approx(slow, rel=1e-9)


def test_a_window_over_rounds_explores_a_stale_drafter_again_and_a_window_per_drafter_does_not():
    for windowing, stale in (("rounds", 1), ("arm", 0)):
        chooser = make("ucb1", 2, c=0.1, window=10, windowing=windowing)
        chooser.learn(1, 0.1)
        for _ in range(10):
            chooser.learn(0, 0.9)
        assert chooser.select(NO_MASK).drafter == stale


def test_exp3_with_one_drafter_picks_it():
    chooser = make("exp3spec", 1)
    chooser.begin()
    assert set(decode(chooser, Text(1), 20)[0]) == {0}


def test_estimated_losses_of_exp3_have_the_right_mean():
    losses = np.array([0.2, 0.7, 0.5])
    totals = np.zeros(3)
    for seed in range(2000):
        chooser = make("exp3spec", 3)
        chooser.begin(seed=seed)
        for _ in range(3):
            drafter = chooser.select(NO_MASK).drafter
            chooser.learn(drafter, 1 - losses[drafter])
        totals += chooser.losses
    assert totals / 2000 == pytest.approx(3 * losses, rel=0.06)


def test_thompson_counts_every_reward_as_one_trial():
    rng = np.random.default_rng(0)
    for rounding in ("fractional", "bernoulli"):
        chooser = make("thompson", 3, rounding=rounding)
        chooser.begin(seed=0)
        counts, sums = np.zeros(3), np.zeros(3)
        for _ in range(200):
            drafter, reward = int(rng.integers(0, 3)), float(rng.random())
            chooser.learn(drafter, reward)
            counts[drafter] += 1
            sums[drafter] += reward
        assert chooser.alpha + chooser.beta == pytest.approx(2 + counts)
        if rounding == "fractional":
            assert chooser.alpha == pytest.approx(1 + sums)
        else:
            assert chooser.alpha == pytest.approx(np.round(chooser.alpha))
            assert chooser.alpha.sum() - 3 == pytest.approx(sums.sum(), abs=25)


def test_decay_moves_probabilities_towards_their_initial_values():
    chooser = make("thompson", 2, decay=0.5)
    chooser.learn(0, 1.0)
    chooser.learn(1, 0.0)
    assert chooser.alpha.tolist() == [1.5, 1.0] and chooser.beta.tolist() == [1.0, 2.0]


def test_halving_plays_in_turns_drops_the_worse_half_and_keeps_the_last():
    chooser = make("metasd_halving", 4, budget=16)
    chooser.begin()
    rewards, choices = [0.3, 0.9, 0.1, 0.8], []
    for cycle in range(24):
        drafter = chooser.select(Context(cycle, 0)).drafter
        chooser.observe(Feedback(drafter, 0, 1, DEPTH, overlap=rewards[drafter]))
        choices.append(drafter)
    assert choices == [0, 0, 1, 1, 2, 2, 3, 3] + [1] * 4 + [3] * 4 + [1] * 8


def test_halving_compares_a_new_drafter_with_the_last_one():
    chooser = make("metasd_halving", 2, budget=4)
    chooser.begin()
    for reward in (0.5, 0.5, 0.2, 0.2):
        chooser.observe(Feedback(chooser.select(NO_MASK).drafter, 0, 1, DEPTH, overlap=reward))
    assert chooser.left.tolist() == [1, 0]
    chooser.add_drafter()
    rewards = [0.5, 0.2, 0.9]
    for _ in range(20):
        drafter = chooser.select(NO_MASK).drafter
        chooser.observe(Feedback(drafter, 0, 1, DEPTH, overlap=rewards[drafter]))
    assert chooser.left.tolist() == [0, 0, 1]


@pytest.mark.parametrize("name", LEARNS)
def test_a_cycle_without_drafted_tokens_changes_nothing(name):
    chooser = make(name)
    chooser.begin(seed=0)
    before = chooser.state_dict()
    chooser.observe(Feedback(0, 0, 1, depth=0))
    assert chooser.state_dict() == before


@pytest.mark.parametrize("name", ["ucb1", "ucbspec", "metasd_ucb"])
def test_an_arm_that_never_drafts_is_learned_as_any_other(name):
    chooser = make(name, 3, levels=[0, DEPTH, DEPTH])
    chooser.begin(seed=0)
    choices = []
    for _ in range(12):
        choices.append(chooser.select(NO_MASK).drafter)
        depth = int(chooser.levels[choices[-1]])
        chooser.observe(Feedback(choices[-1], 0, 1 + depth, depth, coverage=1.0, overlap=1.0))
    assert set(choices) == {0, 1, 2} and choices.count(0) < 6


def test_rewards_are_shares_of_the_deepest_draft():
    chooser = make("ucb1", 2)
    for length, depth, reward in ((3, 4, 0.5), (3, 2, 0.5), (1, 4, 0.0)):
        assert chooser.reward_of(Feedback(0, 0, length, depth)) == reward


def test_costs_turn_rewards_into_tokens_per_second():
    chooser = make("ucb1", 2, costs=[0.1, 0.05])
    slow, fast = (chooser.reward_of(Feedback(drafter, 0, 3, DEPTH)) for drafter in (0, 1))
    assert (slow, fast) == (pytest.approx(3 / 5 / 2), pytest.approx(3 / 5))
    chooser = make("metasd_ucb", 2, costs=[0.1, 0.05], reward="coverage")
    assert chooser.reward_of(Feedback(1, 0, 1, 2, coverage=0.5)) == pytest.approx((1 - 0.5**5) / 0.5 / 5)
    chooser = make("metasd_ucb", 2, costs=[0.1, 0.05], levels=[DEPTH, 2])  # a mean over the drafter's own levels
    assert chooser.reward_of(Feedback(1, 0, 1, 2, overlap=0.5)) == pytest.approx((1 - 0.5**3) / 0.5 / 5)


@pytest.mark.parametrize("name", ["metasd_ucb", "metasd_exp3", "metasd_halving"])
def test_metasd_is_rewarded_by_the_overlap_of_target_and_drafter(name):
    chooser = make(name)
    assert chooser.needs == Needs(overlap=True) and make("ucb1").needs == Needs()
    assert chooser.reward_of(Feedback(1, 0, 1, DEPTH, coverage=0.9, overlap=0.25)) == 0.25
    assert make(name, reward="efficiency").needs == Needs()


@pytest.mark.parametrize(("reward", "measurement"), [("divergence", "overlap"), ("coverage", "coverage")])
def test_rewards_by_distributions_need_their_measurement(reward, measurement):
    chooser = make("metasd_ucb", reward=reward)
    for value, words in (
        (None, f"^metasd_ucb needs the {measurement} of every cycle, got None$"),
        (float("nan"), f"^metasd_ucb needs the {measurement} of every cycle, got nan$"),
        (1.5, rf"^{measurement} must lie in \[0, 1\], got 1.5 .. 1.5$"),
    ):
        with pytest.raises(DrafterforgeError, match=words):
            chooser.observe(Feedback(0, 0, 1, DEPTH, **{measurement: value}))
    chooser.observe(Feedback(0, 0, 1, DEPTH, **{measurement: 1 + 1e-6}))
    assert chooser.sums[0] == 1


def test_a_cycle_cannot_emit_more_than_its_depth_and_one():
    for length in (0, DEPTH + 2):
        expected = rf"^a cycle of depth {DEPTH} emits 1 to depth \+ 1 tokens, got {length}$"
        with pytest.raises(DrafterforgeError, match=expected):
            make("thompson").observe(Feedback(0, 0, length, DEPTH))


def test_ucb1_keeps_below_auers_bound():
    lost, bound = simulation().auer(seeds=30)
    assert lost.mean() + 4 * lost.std() / np.sqrt(30) < bound


@pytest.mark.parametrize("name", ["exp3spec", "metasd_exp3"])
def test_a_new_drafter_of_exp3_starts_at_the_mean_of_the_others(name):
    chooser = make(name)
    chooser.begin(seed=0)
    decode(chooser, Text(), 60)
    losses = chooser.losses.copy()
    chooser.add_drafter()
    assert chooser.losses.tolist() == [*losses.tolist(), pytest.approx(losses.mean())]
    probs = chooser.select(Context(60, 0)).probs
    assert probs[:3].min() < probs[3] < probs[:3].max()


def test_thompson_counts_only_the_rounds_of_its_window():
    chooser = make("thompson_sliding", 2, window=3)
    for drafter, reward in ((0, 0.5), (1, 0.25), (0, 1.0), (0, 0.75)):
        chooser.learn(drafter, reward)
    assert chooser.alpha.tolist() == [2.75, 1.25] and chooser.beta.tolist() == [1.25, 1.75]
    chooser.remove_drafter(0)
    chooser.learn(0, 1.0)
    assert chooser.alpha.tolist() == [2.25] and chooser.beta.tolist() == [1.75]


def test_ucbspec_bounds_a_shallow_drafter_by_its_own_levels():
    chooser = make("ucbspec", 2, depth=10, levels=[3, 10])
    for drafter in (0, 1):
        chooser.learn(drafter, 0.1)
    assert chooser.select(NO_MASK).drafter == 1
    alike = make("ucbspec", 2, depth=10)
    for drafter in (0, 1):
        alike.learn(drafter, 0.1)
    assert alike.select(NO_MASK).drafter == 0
