"""Figures of a replayed log of requests."""

from __future__ import annotations

import pytest

from drafterforge.evaluation import traffic_replay
from drafterforge.evaluation.traffic_replay import LEARNING, PLAIN, ReplayedTraffic, gain_over_plain, moving_mat
from drafterforge.runtime.rows import Cycle, Generation


def answers(*lengths: int, seconds: float = 1.0) -> list[Generation]:
    """Answers of two cycles each, which emit half of the tokens."""
    return [
        Generation([1], [0] * length, cycles=[Cycle(1, 2, length // 2)] * 2, time_s={"total": seconds})
        for length in lengths
    ]


def test_a_moving_mean_is_tokens_over_cycles_of_the_last_requests(monkeypatch):
    monkeypatch.setattr(traffic_replay, "WINDOW", 2)
    seeds = [answers(2, 4, 8), answers(6, 6, 6)]
    assert moving_mat(seeds) == [[2, 2.25, 1.5, 3.0], [3, 3.0, 3.0, 3.0]]


def test_gains_are_ratios_of_tokens_per_second_of_each_seed():
    replays = [
        ReplayedTraffic(seed, {PLAIN: answers(4, 4, 4), LEARNING: answers(4, 4, 4, seconds=seconds)})
        for seed, seconds in ((0, 0.5), (1, 2.0))
    ]
    assert gain_over_plain(replays, LEARNING, range(1, 3)) == pytest.approx([2.0, 0.5])
