"""Gaps of logits: 0 for the target's choices, and what another token's logit lacks."""

from __future__ import annotations

import torch

from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.gaps import logit_gaps


def test_greedy_answers_have_no_gaps(target):
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    for prompt, answer in zip(prompts, BatchAnswerer(target, 2)(prompts, 9, 0), strict=True):
        assert logit_gaps(target, prompt + answer, len(prompt)) == [0.0] * len(answer)


def test_a_gap_is_what_the_token_s_logit_lacks(target):
    ids = [1, 2, 3, 9, 4, 7]
    logits = target.logits(FeatureCapture(target)([ids])[0].states)
    expected = [float(logits[i].max() - logits[i, ids[i + 1]]) for i in (2, 3, 4)]
    torch.testing.assert_close(logit_gaps(target, ids, 3), expected)
    assert min(expected) > 0 and logit_gaps(target, ids, 6) == []


def test_ids_that_the_target_does_not_have_have_an_infinite_gap(target):
    gaps = logit_gaps(target, [1, 2, 10**6, 3], 2)
    assert gaps[0] == float("inf") and gaps[1] < float("inf")
