"""Guesses are judged by the tokens that follow them, also those of the cycle before."""

from __future__ import annotations

import torch

from drafterforge.interop.vllm.judging import Guesses, newest_rows


def test_first_token_of_a_cycle_is_judged_by_the_guess_of_the_cycle_before():
    state, slot = Guesses.empty(1, 2, torch.device("cpu")), torch.tensor([0])
    state.begin(slot, torch.tensor([3]))  # positions 0 to 2 are the prompt's
    prompt = newest_rows(torch.tensor([0]), torch.tensor([2]), 4)
    guesses = torch.tensor([[[5, 5, 6, 7]], [[5, 5, 6, 8]]])
    first = state.judge(slot, prompt, guesses, torch.tensor([[1, 1, 2, 9]]), torch.tensor([[1, 1, 2, 3]]))
    assert first.counts.tolist() == [0]
    cycle = newest_rows(torch.tensor([0]), torch.tensor([1]), 4)  # one drafted token was accepted
    assert cycle.valid.tolist() == [[False, False, True, True]]
    guesses = torch.tensor([[[4, 4, 4, 0]], [[3, 3, 3, 0]]])
    second = state.judge(slot, cycle, guesses, torch.tensor([[8, 8, 8, 4]]), torch.tensor([[4, 4, 4, 5]]))
    assert second.counts.tolist() == [2]
    assert second.hits[0, :, :2].tolist() == [[False, True], [True, False]]
    assert second.gaps.tolist() == [False]
