"""Rounds are complete, in order and carry their cycle's probabilities, for every division of a text into cycles."""

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


def probs_at(position):
    weights = np.random.default_rng(position).random(DRAFTERS)
    return weights / weights.sum()


def run_queue(chunks, granularity="token", eval_interval=1):
    """The queue after a text in these chunks, and its rounds, each with the last position evaluated by then."""
    queue = DelayQueue(DRAFTERS, DEPTH, granularity)
    rounds, begin, sent = [], 0, 0
    for cycle, length in enumerate(chunks):
        end = min(begin + length, POSITIONS)
        if begin < end:
            queue.add_cycle(START + begin, probs_at(begin))
        begin = end
        if cycle % eval_interval == eval_interval - 1:
            rounds += [(*entry, START + end) for entry in zip(*queue.extend(part(sent, end)), strict=True)]
            sent = end
    return queue, rounds, sent


@QUICK
@given(CHUNKS, st.integers(1, 4))
def test_any_chunking_gives_the_same_complete_rounds_in_order(chunks, eval_interval):
    _, rounds, num_known = run_queue(chunks, eval_interval=eval_interval)
    assert [entry[0] for entry in rounds] == list(range(START, START + num_known - DEPTH + 1))
    for position, gamma, accepted, _, _, _ in rounds:
        index = position - START
        assert np.array_equal(gamma, GAMMA[:, index : index + DEPTH])
        assert np.array_equal(accepted, ACCEPTED[:, index : index + DEPTH])


@QUICK
@given(CHUNKS)
def test_no_round_waits_longer_than_twice_the_depth_or_comes_before_it_is_complete(chunks):
    _, rounds, _ = run_queue(chunks)
    for position, *_, num_known in rounds:
        assert DEPTH <= num_known - position <= 2 * DEPTH


@QUICK
@given(CHUNKS, st.integers(1, 4))
def test_each_round_carries_the_probabilities_of_its_cycle(chunks, eval_interval):
    _, rounds, _ = run_queue(chunks, eval_interval=eval_interval)
    begins = np.minimum(np.cumsum([0, *chunks]), POSITIONS)
    for position, _, _, probs, _, _ in rounds:
        covering = begins[begins <= position - START].max()
        assert np.array_equal(probs, probs_at(covering))


@QUICK
@given(CHUNKS, st.integers(1, 4))
def test_at_chunk_granularity_only_cycles_start_rounds(chunks, eval_interval):
    _, rounds, num_known = run_queue(chunks, "chunk", eval_interval)
    begins = np.unique(np.minimum(np.cumsum([0, *chunks])[:-1], POSITIONS))
    assert [entry[0] - START for entry in rounds] == [begin for begin in begins if begin + DEPTH <= num_known]


def test_open_rounds_are_the_incomplete_ones():
    queue, rounds, _ = run_queue([3, 2])
    waiting = queue.open_rounds()
    assert [entry[0] for entry in rounds] == [START, START + 1]
    assert waiting.positions.tolist() == [START + 2, START + 3, START + 4]
    assert np.array_equal(waiting.gamma[..., 0], GAMMA[:, 2:5].T)
    assert np.array_equal(waiting.probs, [probs_at(0), probs_at(3), probs_at(3)])


def test_a_gap_drops_only_the_rounds_that_cross_it():
    queue, _, _ = run_queue([5, 3])
    queue.add_cycle(START + 10, probs_at(10))
    rounds = queue.extend(part(10, 15))
    assert rounds.positions.tolist() == [START + 10, START + 11]
    assert np.array_equal(rounds.probs, [probs_at(10)] * 2)


def test_positions_that_no_cycle_emitted_are_no_rounds():
    queue = DelayQueue(DRAFTERS, DEPTH)
    queue.add_cycle(START + 3, probs_at(3))
    assert queue.extend(part(0, 8)).positions.tolist() == [START + 3, START + 4]
    assert queue.extend(part(8, 8)).positions.tolist() == []


def test_the_queue_holds_only_positions_of_open_rounds():
    queue, _, _ = run_queue([3] * 20)
    assert queue.gamma.shape == (DRAFTERS, DEPTH - 1)
    assert len(queue.begins) == len(queue.probs) <= 2


def test_a_new_drafter_has_no_measurements_and_a_removed_one_leaves_none():
    queue, _, _ = run_queue([3])
    queue.add_drafter()
    queue.remove_drafter(0)
    queue.add_cycle(START + 3, probs_at(3))
    moved = [1, 2, 0]  # as if the new drafter had the numbers of the removed one
    rounds = queue.extend(Evaluation(START + 3, GAMMA[moved, 3:8], ACCEPTED[moved, 3:8]))
    assert np.array_equal(rounds.gamma[0, :2], GAMMA[1:, :4])
    assert np.isnan(rounds.gamma[0, 2, :3]).all() and rounds.gamma[0, 2, 3] == GAMMA[0, 3]
    assert np.array_equal(rounds.probs[0], [*probs_at(0)[1:], 0.0])


def test_an_evaluation_of_another_pool_is_refused():
    with pytest.raises(DrafterforgeError, match=r"^gamma and accepted must be \[3, n\], got .*$"):
        DelayQueue(DRAFTERS, DEPTH).extend(Evaluation(0, np.ones((2, 4)), np.ones((2, 4))))


def test_probabilities_out_of_range_are_refused_and_rounding_errors_clipped():
    queue = DelayQueue(DRAFTERS, 1)
    queue.add_cycle(0, probs_at(0))
    rounds = queue.extend(Evaluation(0, np.full((DRAFTERS, 2), 1 + 1e-6), np.full((DRAFTERS, 2), np.nan)))
    assert (rounds.gamma == 1).all() and np.isnan(rounds.accepted).all()
    with pytest.raises(DrafterforgeError, match=r"^gamma must lie in \[0, 1\], got 1.2 .. 1.2$"):
        queue.extend(Evaluation(2, np.full((DRAFTERS, 1), 1.2), np.ones((DRAFTERS, 1))))


def test_a_deep_drafter_delays_rounds_only_while_it_is_accepted():
    """Drafter 0 has 2 levels, drafter 1 has 10; rounds complete once neither can go on."""
    hits = np.array([[1, 1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1, 1]], dtype=float)
    queue = DelayQueue(2, 10, levels=np.array([2, 10]))
    queue.add_cycle(0, np.array([1.0, 0.0]))
    assert queue.extend(Evaluation(0, hits[:, :3], hits[:, :3])).positions.tolist() == []  # drafter 1 goes on
    rounds = queue.extend(Evaluation(3, hits[:, 3:], hits[:, 3:]))
    assert rounds.positions.tolist() == [0, 1, 2, 3]  # from position 4 on drafter 1 has not missed
    lengths = rounds.accepted.cumprod(axis=-1).sum(axis=-1)
    assert lengths.tolist() == [[2.0, 3.0], [1.0, 2.0], [0.0, 1.0], [5.0, 0.0]]
    assert DelayQueue(2, 3).levels.tolist() == [3, 3]
