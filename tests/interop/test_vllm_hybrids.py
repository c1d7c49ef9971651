"""Drafters of a pool in vLLM take looked-up chains where these are worth more, and learn what chains are worth."""

from __future__ import annotations

import torch

from drafterforge.interop.vllm.hybrids import Hybrids

ALL = torch.ones((1, 3), dtype=torch.bool)
SLOT = torch.tensor([0])
GUESSES = torch.tensor([[[4, 5]], [[6, 7]], [[8, 9]]])  # two drafters and one that looks up, at two rows


def hybrids() -> Hybrids:
    return Hybrids(2, 3, 4, torch.device("cpu"))


def test_a_drafter_takes_the_looked_up_guess_where_it_is_worth_more():
    worths = torch.tensor([[[0.9, 0.9]], [[0.1, 0.1]], [[0.0, 1.0]]])
    pool = hybrids()
    assert pool.combine(GUESSES, worths, ALL).tolist() == [[[4, 5]], [[6, 9]], [[8, 9]]]
    assert pool.choose(SLOT, torch.tensor([0]), True).tolist() == [0]
    assert pool.choose(SLOT, torch.tensor([1]), True).tolist() == [2]
    assert pool.choose(SLOT, torch.tensor([2]), True).tolist() == [2]


def test_a_hint_for_a_drafter_keeps_looked_up_chains_out():
    worths = torch.tensor([[[0.1, 0.1]], [[0.1, 0.1]], [[2.0, 2.0]]])
    only = torch.tensor([[True, False, False]])
    assert torch.equal(hybrids().combine(GUESSES, worths, only), GUESSES)
    assert hybrids().choose_lookup(SLOT, torch.tensor([[2.0]]), only).tolist() == [0]


def test_accepted_tokens_change_what_a_chain_is_worth():
    worths = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]], [[1.0, 1.0]]])
    pool = hybrids()
    for _ in range(60):
        pool.combine(GUESSES, worths, ALL)
        assert pool.choose(SLOT, torch.tensor([2]), True).tolist() == [2]
        pool.learn(SLOT, torch.tensor([0]))  # nothing that was looked up is accepted
    assert torch.equal(pool.combine(GUESSES, worths, ALL), GUESSES)


def test_cycles_without_a_chain_and_cut_chains_teach_nothing():
    worths = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]], [[0.0, 0.0]]])
    pool = hybrids()
    before = pool.totals[1] / pool.totals[0]
    for complete, accepted in ((True, -1), (False, 1)):
        pool.combine(GUESSES, worths, ALL)
        pool.choose(SLOT, torch.tensor([0]), complete)
        pool.learn(SLOT, torch.tensor([accepted]))
    assert torch.allclose(pool.totals[1] / pool.totals[0], before)
    pool.combine(GUESSES, worths, ALL)
    pool.choose(SLOT, torch.tensor([0]), True)
    pool.learn(SLOT, torch.tensor([3]))
    assert (pool.totals[1] / pool.totals[0])[0] > before[0]


def test_looked_up_chains_are_chosen_alone_where_the_model_drafts_nothing():
    pool, slots = Hybrids(1, 3, 4, torch.device("cpu")), torch.tensor([0, 1, 2])
    worths = torch.tensor([[1.0, 0.0, 0.5], [2.0, 0.0, 0.0]])
    assert pool.choose_lookup(slots, worths, torch.ones((3, 3), dtype=torch.bool)).tolist() == [2, 0, 1]
    assert pool.pending[:3].tolist() == [2.0, 0.0, 0.5]
