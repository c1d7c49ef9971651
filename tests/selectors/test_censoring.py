"""Losses truncated at the chosen drafter's first rejection favour it; delayed losses do not (selectors.md 1.4)."""

from __future__ import annotations

import numpy as np

from drafterforge.selectors import Context, Evaluation, Feedback, learner
from drafterforge.selectors.estimators import expected_length, length_loss
from tests.selectors.world import make

LEVELS = np.array([[0.7, 0.02, 0.02, 0.02, 0.02], [0.5, 0.5, 0.99, 0.99, 0.99]])  # 1.714 and 2.485 tokens a cycle
DEPTH, CYCLES, RUNS, FORCED = 5, 120, 20, 5


def run(drafter, rng):
    return int(1 + (rng.random(DEPTH) < LEVELS[drafter]).cumprod().sum())


def truncated(rng):
    """Share of late cycles with the better drafter if each loss only uses the levels of its own cycle."""
    policy, late = learner("normalhedge", 2), []
    for cycle in range(CYCLES):
        drafter = 0 if cycle < FORCED else int(rng.random() < policy.probs[1])
        levels = LEVELS[:, : min(run(drafter, rng), DEPTH)]
        policy.update(length_loss(expected_length(levels, levels), DEPTH))
        late.append(drafter)
    return np.mean(late[CYCLES // 2 :])


def delayed(rng, seed):
    """The same share with complete rounds, whose remaining levels come with the next evaluation."""
    chooser, late, sent = make("normalhedge", 2, DEPTH, granularity="chunk", draw="sample"), [], 0
    chooser.begin(seed=seed)
    stream = np.tile(LEVELS, CYCLES)
    for cycle in range(CYCLES):
        mask = np.array([True, cycle >= FORCED])
        drafter = chooser.select(Context(cycle, 0, mask)).drafter
        length = run(drafter, rng)
        end = cycle * DEPTH + min(length, DEPTH)
        evaluation = Evaluation(sent, stream[:, sent:end], stream[:, sent:end])
        chooser.observe(Feedback(drafter, cycle * DEPTH, length, DEPTH, evaluation=evaluation))
        sent = end
        late.append(drafter)
    return np.mean(late[CYCLES // 2 :])


def test_only_delayed_losses_find_a_drafter_that_is_better_at_deep_levels():
    rng = np.random.default_rng(0)
    assert np.mean([delayed(rng, seed) for seed in range(RUNS)]) >= 0.95
    assert np.mean([truncated(rng) for _ in range(RUNS)]) <= 0.5
