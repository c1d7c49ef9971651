"""Arms of drafter and tree: an arm alone takes the seconds of static play."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drafterforge.replay.joint_play import Arm, JointAnswers, portfolio
from drafterforge.replay.table import build_table, play_static
from drafterforge.replay.trace import Traces
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.tree.grow import TreeShape
from drafterforge.tree.union import MISSING
from tests.replay.builders import profile, traces

GRID = ActionGrid("made", (1, 2, 4), (1, 2, 3), (1, 2))


def test_an_arm_alone_takes_the_seconds_of_its_static_tree():
    recorded = traces(lengths=(20, 30))
    arms = [Arm("a", shape) for shape in GRID.shapes]
    answers = JointAnswers.of(recorded, GRID, profile(), arms)
    static = play_static(build_table(recorded, GRID, 0, profile()))
    assert answers.alone() == pytest.approx(static, rel=1e-5)
    played = [answers.play(answers.maker("static", drafter=arm.name)) for arm in arms]
    assert np.stack(played, axis=1) == pytest.approx(static, rel=1e-5)


def test_a_portfolio_begins_with_the_best_arm_and_each_addition_makes_it_no_slower():
    recorded = traces(lengths=(20, 30, 25, 18))
    arms = portfolio(recorded, GRID, profile(), 5)
    alone = JointAnswers.of(recorded, GRID, profile(), arms).alone()
    assert alone[:, 0].sum() == pytest.approx(
        play_static(build_table(recorded, GRID, 0, profile())).sum(axis=0).min(), rel=1e-5
    )
    best = [alone[:, : count + 1].min(axis=1).sum() for count in range(len(arms))]
    assert (np.diff(best) <= 1e-6).all()


@pytest.mark.parametrize("name", ["hedgespec", "ucb1", "random"])
def test_selectors_play_whole_answers(name):
    recorded = traces(lengths=(20, 30))
    answers = JointAnswers.of(recorded, GRID, profile(), portfolio(recorded, GRID, profile(), 4))
    seconds = answers.play(answers.maker(name))
    assert seconds.shape == (2,) and (seconds > 0).all()
    assert answers.num_tokens == recorded.num_roots


def traces_with_levels(depths: list[int], lengths: int = 400) -> Traces:
    """Answers in which the drafter is right for so many levels at each root, in turn."""
    recorded = traces(lengths=(lengths, lengths))
    ranks = recorded.rows["ranks"].copy()
    ranks[:] = MISSING
    for row in range(ranks.shape[1]):
        for deep in range(1, 4):
            for level in range(1, min(deep, depths[row % len(depths)]) + 1):
                ranks[0, row, :, deep * (deep - 1) // 2 + level - 1] = level
    return replace(recorded, rows={**recorded.rows, "ranks": ranks})


def test_a_portfolio_ends_with_the_last_arm_that_helps_an_answer():
    recorded = traces(lengths=(20, 30, 25, 18))
    arms = portfolio(recorded, GRID, profile(), 100)
    seconds = JointAnswers.of(recorded, GRID, profile(), arms).alone()
    assert len(arms) == len(set(arms)) <= 4 and set(seconds.argmin(axis=1)) <= {*range(len(arms))}


def test_a_learner_waits_for_the_tokens_of_its_deepest_arm():
    recorded = traces(lengths=(20, 30))
    answers = JointAnswers.of(recorded, GRID, profile(), [SMALL, LARGE])
    make, ends = answers.maker("hedgespec"), []

    def recording():
        chooser = make()
        extend = chooser.queue.extend

        def extended(evaluation):
            rounds = extend(evaluation)
            ends.extend((evaluation.start + evaluation.gamma.shape[1] - rounds.positions).tolist())
            return rounds

        chooser.queue.extend = extended
        return chooser

    answers.play(recording)
    assert len(ends) > 10 and min(ends) >= LARGE.shape.depth


SMALL, LARGE = Arm("a", TreeShape(2, 3, 1)), Arm("a", TreeShape(4, 3, 1))


@pytest.mark.parametrize("name", ["hedgespec", "normalhedge", "ftl"])
@pytest.mark.parametrize(("known_levels", "better"), [([3], 1), ([1], 0), ([0, 0, 0, 1], 0)])
def test_the_better_of_two_trees_of_one_drafter_wins(name, known_levels, better):
    """The first levels of both trees are accepted alike; only tokens and seconds of whole cycles differ."""
    answers = JointAnswers.of(traces_with_levels(known_levels), GRID, profile(), [SMALL, LARGE])
    alone, seconds = answers.alone(), answers.play(answers.maker(name))
    assert alone.sum(axis=0).argmin() == better
    assert seconds.sum() < 0.1 * alone[:, 1 - better].sum() + 0.9 * alone[:, better].sum()


def test_a_learner_over_trees_observes_tokens_per_second_from_each_position():
    recorded = traces(lengths=(20, 30))
    answers = JointAnswers.of(recorded, GRID, profile(), [SMALL, LARGE])
    heard, make = [], answers.maker("normalhedge")

    def recording():
        chooser = make()
        learn = chooser.learner.update
        chooser.learner.update = lambda losses, *rest, **options: (
            heard.append(losses),
            learn(losses, *rest, **options),
        )
        return chooser

    answers.play(recording)
    rates = answers.table.tokens[0] / answers.table.seconds[0]
    assert (1 - heard[0]) / (1 - heard[0]).sum() == pytest.approx(rates / rates.sum())
