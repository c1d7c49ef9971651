"""Arms of drafter and tree: what they cost alone is what static play costs."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.evaluation.joint import Arm, JointContest, portfolio
from drafterforge.scheduling.actions import ActionGrid
from drafterforge.scheduling.replay import build_table, play_static
from tests.scheduling.made import profile, traces

GRID = ActionGrid("made", (1, 2, 4), (1, 2, 3), (1, 2))


def test_an_arm_alone_takes_the_seconds_of_its_static_tree():
    told = traces(lengths=(20, 30))
    arms = [Arm("a", shape) for shape in GRID.shapes]
    alone = JointContest.of(told, GRID, profile(), arms).alone()
    assert alone == pytest.approx(play_static(build_table(told, GRID, 0, profile())), rel=1e-5)


def test_a_portfolio_begins_with_the_best_arm_and_never_gets_slower():
    told = traces(lengths=(20, 30, 25, 18))
    arms = portfolio(told, GRID, profile(), 5)
    alone = JointContest.of(told, GRID, profile(), arms).alone()
    assert alone[:, 0].sum() == pytest.approx(
        play_static(build_table(told, GRID, 0, profile())).sum(axis=0).min(), rel=1e-5
    )
    best = [alone[:, : count + 1].min(axis=1).sum() for count in range(len(arms))]
    assert (np.diff(best) <= 1e-6).all()


@pytest.mark.parametrize("name", ["hedgespec", "ucb1", "random"])
def test_selectors_play_whole_answers(name):
    told = traces(lengths=(20, 30))
    contest = JointContest.of(told, GRID, profile(), portfolio(told, GRID, profile(), 4))
    seconds = contest.play(contest.maker(name))
    assert seconds.shape == (2,) and (seconds > 0).all()
    assert contest.num_tokens == told.num_roots
