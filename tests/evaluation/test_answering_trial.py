"""A trial of a few answers, and the schedule that it is scaled up with."""

from __future__ import annotations

import pytest

from drafterforge.evaluation.answering_trial import (
    AnsweringSpeed,
    TrialAnswerer,
    answering_seconds,
    expected_lengths,
)
from drafterforge.targets.answer import BatchAnswerer
from tests.models import tiny_target

PROMPTS = [[3, 4, 5, 6][: 1 + index % 4] for index in range(13)]


def test_a_trial_gives_the_answers_of_the_answerer_and_counts_its_passes():
    target = tiny_target(eos_token_id=7)
    trial = TrialAnswerer(target, 4, keep=lambda *_: None, budget_s=1e9)
    answers = trial(PROMPTS, 12, 0)
    assert answers == BatchAnswerer(target, 4)(PROMPTS, 12, 0)
    assert sorted(length for length, _ in trial.lengths) == sorted(map(len, answers))
    assert sum(ended for _, ended in trial.lengths) == sum(answer[-1] == 7 for answer in answers)
    speed = trial.speed()
    assert min(vars(speed).values()) >= 0 and speed.step_s + speed.row_s > 0


def test_a_trial_that_takes_too_long_is_cut():
    trial = TrialAnswerer(tiny_target(eos_token_id=7), 4, keep=lambda *_: None, budget_s=0.0)
    answers = trial(PROMPTS, 40, 0)
    assert len(answers) == len(PROMPTS) and max(map(len, answers)) <= 3


def test_the_played_schedule_has_the_passes_of_the_answerer():
    target = tiny_target(eos_token_id=7)
    trial = TrialAnswerer(target, 4, keep=lambda *_: None, budget_s=1e9)
    lengths = [len(answer) for answer in trial(PROMPTS, 4, 0)]
    assert set(lengths) == {4}  # else an order of lengths would be played that is not that of the answers
    by_step = answering_seconds([*map(len, PROMPTS)], [4], 4, 100, AnsweringSpeed(0, 0, 1, 0))
    by_row = answering_seconds([*map(len, PROMPTS)], [4], 4, 100, AnsweringSpeed(0, 0, 0, 1))
    by_token = answering_seconds([*map(len, PROMPTS)], [4], 4, 100, AnsweringSpeed(0, 1, 0, 0))
    assert by_step == len(trial.steps) and by_row == sum(rows for rows, _ in trial.steps)
    assert by_token == sum(tokens for tokens, _ in trial.prefills)


def test_many_shards_take_as_long_as_those_that_are_played():
    speed = AnsweringSpeed(1, 0, 1, 0)
    batch_s = answering_seconds([5] * 4, [3], 4, 4, speed)
    assert answering_seconds([5] * 400, [3], 4, 4, speed) == pytest.approx(100 * batch_s)


def test_answers_that_were_cut_are_expected_to_end_as_others_did():
    assert expected_lengths([(10, True), (20, True), (30, False)], 100) == [10, 20, 60]
    assert expected_lengths([(10, True), (20, True), (30, False)], 40) == [10, 20, 40]
    assert expected_lengths([(8, False), (8, False)], 64) == [64, 64]
