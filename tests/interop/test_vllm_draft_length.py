"""A batch in vLLM drafts as many tokens as pay, by measured seconds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from drafterforge.interop.vllm.draft_length import FIRST_TRIALS, DraftLength


def settle(rule: DraftLength, batch: int, seconds: dict[int, float], accepted: int, cycles: int = 200) -> list[int]:
    """The lengths that the rule chose in cycles that take `seconds` of their length."""
    lengths = []
    for _ in range(cycles):
        length = rule.choose(batch)
        rule.observe(length, seconds[length], [min(accepted, length)] * batch, [])
        lengths.append(length)
    return lengths


def test_all_tokens_are_drafted_where_they_are_accepted():
    assert settle(DraftLength(3), 1, {0: 1.0, 1: 1.2, 3: 1.5}, 3).count(3) > 180


def test_nothing_is_drafted_where_nothing_is_accepted():
    assert settle(DraftLength(3), 8, {0: 1.0, 1: 1.3, 3: 1.6}, 0)[100:].count(0) > 90


def test_another_batch_size_begins_with_what_is_best_in_the_nearest():
    rule, seconds = DraftLength(3), {0: 1.0, 1: 1.3, 3: 1.6}
    settle(rule, 8, seconds, 0)
    lengths = settle(rule, 7, {length: 0.9 * value for length, value in seconds.items()}, 0, 50)
    assert lengths == [0] * 50
    assert rule.choose(6) == 0


def test_lengths_that_look_worse_are_tried_again_ever_more_rarely():
    lengths = settle(DraftLength(3), 1, {0: 1.0, 1: 2.0, 3: 4.0}, 0, 1000)[9:]
    tried = [index for index, length in enumerate(lengths) if length == 3]
    gaps = [after - before for before, after in pairwise(tried[1:])]
    assert gaps == sorted(gaps) and len(tried) >= FIRST_TRIALS


def test_looked_up_chains_count_for_every_length():
    rule, seconds = DraftLength(3), {0: 1.0, 1: 1.5, 3: 2.0}
    for _ in range(300):
        length = rule.choose(2)
        rule.observe(length, seconds[length], [], [3, 3])
    assert rule.choose(2) == 0
    assert rule.rate(2, 0) == pytest.approx(4.0, rel=0.01)


def test_looked_up_chains_are_measured_apart_where_nothing_is_drafted():
    rule, seconds = DraftLength(3), {0: 1.0, 1: 1.4, 3: 1.8}
    for _ in range(40):
        length = rule.choose(8)
        looked_up = [1] if length else [2] * 6  # where drafters draft, few prefer looked-up text
        rule.observe(length, seconds[length], [min(length, 1)] * (8 - len(looked_up)), looked_up)
    assert rule.choose(8) == 0
    assert rule.rate(8, 0) == pytest.approx(1 + 12 / 8)
    assert rule.rate(8, 1) == pytest.approx((1 + 1 / 8 + 7 / 8) / 1.4, rel=0.1)
