"""Rounds come out complete, in order and with the law that was played, however the text was cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterforge.errors import DrafterforgeError
from drafterforge.selectors import Evaluation
from drafterforge.selectors.delay import DelayQueue

DEPTH, DRAFTERS, POSITIONS, START = 4, 3, 60, 100
RNG = np.random.default_rng(0)
GAMMA, ACCEPTED = RNG.random((2, DRAFTERS, POSITIONS))
CHUNKS = st.lists(st.integers(1, DEPTH + 1), min_size=1, max_size=40)
QUICK = settings(max_examples=100, deadline=None)


def part(start, stop):
    return Evaluation(START + start, GAMMA[:, start:stop], ACCEPTED[:, start:stop])


def law(position):
    weights = np.random.default_rng(position).random(DRAFTERS)
    return weights / weights.sum()


def fed(chunks, granularity="token", every=1):
    """Rounds of a text in these chunks, evaluated every so many cycles, and the positions known as each came out."""
    queue = DelayQueue(DRAFTERS, DEPTH, granularity)
    found, begin, sent = [], 0, 0
    for cycle, length in enumerate(chunks):
        end = min(begin + length, POSITIONS)
        if begin < end:
            queue.add_cycle(START + begin, law(begin))
        begin = end
        if cycle % every == every - 1:
            found += [(*entry, START + end) for entry in zip(*queue.extend(part(sent, end)), strict=True)]
            sent = end
    return queue, found, sent


@QUICK
@given(CHUNKS, st.integers(1, 4))
def test_any_chunking_gives_the_same_complete_rounds_in_order(chunks, every):
    _, found, known = fed(chunks, every=every)
    assert [entry[0] for entry in found] == list(range(START, START + known - DEPTH + 1))
    for position, gamma, accepted, _, _ in found:
        place = position - START
        assert np.array_equal(gamma, GAMMA[:, place : place + DEPTH])
        assert np.array_equal(accepted, ACCEPTED[:, place : place + DEPTH])


@QUICK
@given(CHUNKS)
def test_no_round_waits_longer_than_twice_the_depth_or_comes_before_it_is_complete(chunks):
    _, found, _ = fed(chunks)
    for position, *_, known in found:
        assert DEPTH <= known - position <= 2 * DEPTH


@QUICK
@given(CHUNKS, st.integers(1, 4))
def test_each_round_carries_the_law_of_the_cycle_that_covers_it(chunks, every):
    _, found, _ = fed(chunks, every=every)
    begins = np.minimum(np.cumsum([0, *chunks]), POSITIONS)
    for position, _, _, probs, _ in found:
        covering = begins[begins <= position - START].max()
        assert np.array_equal(probs, law(covering))


@QUICK
@given(CHUNKS, st.integers(1, 4))
def test_at_chunk_granularity_only_cycles_start_rounds(chunks, every):
    _, found, known = fed(chunks, "chunk", every)
    begins = np.unique(np.minimum(np.cumsum([0, *chunks])[:-1], POSITIONS))
    assert [entry[0] - START for entry in found] == [begin for begin in begins if begin + DEPTH <= known]


def test_open_rounds_are_those_that_wait():
    queue, found, _ = fed([3, 2])
    waiting = queue.open_rounds()
    assert [entry[0] for entry in found] == [START, START + 1]
    assert waiting.positions.tolist() == [START + 2, START + 3, START + 4]
    assert np.array_equal(waiting.gamma[..., 0], GAMMA[:, 2:5].T)
    assert np.array_equal(waiting.probs, [law(0), law(3), law(3)])


def test_a_gap_drops_the_rounds_it_breaks_and_no_others():
    queue, _, _ = fed([5, 3])
    queue.add_cycle(START + 10, law(10))
    rounds = queue.extend(part(10, 15))
    assert rounds.positions.tolist() == [START + 10, START + 11]
    assert np.array_equal(rounds.probs, [law(10)] * 2)


def test_positions_that_no_cycle_emitted_are_no_rounds():
    queue = DelayQueue(DRAFTERS, DEPTH)
    queue.add_cycle(START + 3, law(3))
    assert queue.extend(part(0, 8)).positions.tolist() == [START + 3, START + 4]
    assert queue.extend(part(8, 8)).positions.tolist() == []


def test_the_queue_holds_only_what_it_needs():
    queue, _, _ = fed([3] * 20)
    assert queue.gamma.shape == (DRAFTERS, DEPTH - 1)
    assert len(queue.begins) == len(queue.probs) <= 2


def test_a_newcomer_was_not_measured_and_one_that_leaves_takes_its_numbers_along():
    queue, _, _ = fed([3])
    queue.add_drafter()
    queue.remove_drafter(0)
    queue.add_cycle(START + 3, law(3))
    moved = [1, 2, 0]  # as if the newcomer were measured like the drafter that left
    rounds = queue.extend(Evaluation(START + 3, GAMMA[moved, 3:8], ACCEPTED[moved, 3:8]))
    assert np.array_equal(rounds.gamma[0, :2], GAMMA[1:, :4])
    assert np.isnan(rounds.gamma[0, 2, :3]).all() and rounds.gamma[0, 2, 3] == GAMMA[0, 3]
    assert np.array_equal(rounds.probs[0], [*law(0)[1:], 0.0])


def test_an_evaluation_of_another_pool_is_refused():
    with pytest.raises(DrafterforgeError, match=r"^gamma and accepted must be \[3, n\], got .*$"):
        DelayQueue(DRAFTERS, DEPTH).extend(Evaluation(0, np.ones((2, 4)), np.ones((2, 4))))


def test_probabilities_out_of_range_are_refused_and_rounding_is_cut():
    queue = DelayQueue(DRAFTERS, 1)
    queue.add_cycle(0, law(0))
    rounds = queue.extend(Evaluation(0, np.full((DRAFTERS, 2), 1 + 1e-6), np.full((DRAFTERS, 2), np.nan)))
    assert (rounds.gamma == 1).all() and np.isnan(rounds.accepted).all()
    with pytest.raises(DrafterforgeError, match=r"^gamma must lie in \[0, 1\], got 1.2 .. 1.2$"):
        queue.extend(Evaluation(2, np.full((DRAFTERS, 1), 1.2), np.ones((DRAFTERS, 1))))
