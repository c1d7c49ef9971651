"""`hedgespec-paper`: copies of NormalHedge that each await feedback alone."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.errors import ConfigError
from drafterforge.selectors import Context, learner
from tests.selectors.world import DEPTH, Text, decode, make


def test_every_copy_is_a_learner_without_delay():
    """Copies by brute force: who plays which round, and the losses of rounds whose K levels are known."""
    text, chooser = Text(), make("hedgespec-paper")
    chooser.begin(seed=0)
    copies, waiting, position = [learner("normalhedge", 3) for _ in range(2 * DEPTH + 1)], {}, 0
    for cycle in range(60):
        free = [index for index in range(len(copies)) if index not in waiting.values()]
        choice = chooser.select(Context(cycle, position))
        assert choice.probs == pytest.approx(copies[free[0]].probs, rel=1e-9)
        feedback = text.feedback(choice.drafter, position)
        chooser.observe(feedback)
        for offset in range(feedback.accept_length):
            waiting[position + offset] = free[offset]
        position += feedback.accept_length
        for start in [start for start in waiting if start + DEPTH <= position]:
            length = 1 + text.gamma[:, start : start + DEPTH].cumprod(axis=1).sum(axis=1)
            copies[waiting.pop(start)].update(1 - length / (DEPTH + 1))
    assert len(chooser.copies) <= 2 * DEPTH + 1


def test_it_draws_its_choices_and_finds_the_best_drafter():
    text = Text(means=[0.4, 0.85, 0.5])
    runs = []
    for seed in range(3):
        chooser = make("hedgespec-paper")
        chooser.begin(seed=seed)
        runs.append(decode(chooser, text, 300)[0])
        assert np.mean(np.array(runs[-1][200:]) == 1) > 0.8
    assert runs[0] != runs[1] != runs[2]


def test_it_takes_no_option_that_the_paper_does_not_have():
    for option in ({"discount": 0.7}, {"hybrid": True}, {"learner": "ftl"}, {"draw": "argmax"}):
        with pytest.raises(ConfigError, match="no option of hedgespec-paper"):
            make("hedgespec-paper", **option)
