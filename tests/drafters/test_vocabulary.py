"""The draft vocabulary of an EAGLE-3 drafter: frequent by frequency, and extended for further answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafterforge.drafters.eagle3.init import extend_vocabulary
from drafterforge.drafters.eagle3.vocab import coverage, draft_token_ids, extended_token_ids
from tests.models import tiny_drafter, tiny_target

COUNTS = np.array([5, 0, 9, 1, 7, 0, 2, 3])  # of eight ids


@pytest.mark.parametrize(
    ("present", "size", "expected"),
    [
        ([1, 3], 4, [1, 2, 3, 4]),  # the two most frequent others
        ([1, 3], 20, [0, 1, 2, 3, 4, 6, 7]),  # an id that does not occur is not added
        ([1, 3], 2, [1, 3]),
        ([1, 3, 5], 2, [1, 3, 5]),  # a smaller size takes none away
        ([0, 2, 3, 4, 6, 7], 8, [0, 2, 3, 4, 6, 7]),  # all that occur are there
    ],
)
def test_a_vocabulary_is_extended_by_the_most_frequent_ids_that_it_lacks(present, size, expected):
    before = COUNTS.copy()
    assert extended_token_ids(COUNTS, torch.tensor(present), size).tolist() == expected
    assert np.array_equal(COUNTS, before)


def test_an_extended_vocabulary_covers_at_least_as_many_tokens():
    frequent = draft_token_ids(COUNTS, 3)
    assert frequent.tolist() == [0, 2, 4] and coverage(COUNTS, frequent) == 21 / 27
    assert coverage(COUNTS, extended_token_ids(COUNTS, frequent, 5)) == 26 / 27


def test_new_rows_of_the_head_are_the_targets_in_the_size_of_the_drafters():
    target = tiny_target()
    drafter = tiny_drafter(target, draft_vocab_size=20)
    head = target.head_weight
    with torch.no_grad():
        drafter.lm_head.weight.copy_(0.5 * head[drafter.token_ids])
        drafter.lm_head.weight[0] += 0.01
    present = set(drafter.token_ids.tolist())
    more = [token for token in range(head.shape[0]) if token not in present][:7]
    larger = extend_vocabulary(drafter, torch.tensor(sorted([*present, *more])), head)
    assert larger.spec.draft_vocab_size == 27 and larger.token_ids.tolist() == sorted([*present, *more])
    assert torch.equal(larger.t2d.nonzero()[:, 0], larger.token_ids)
    of_present = torch.isin(larger.token_ids, drafter.token_ids)
    assert torch.equal(larger.lm_head.weight[of_present], drafter.lm_head.weight)
    new, theirs = larger.lm_head.weight[~of_present], head[larger.token_ids[~of_present]]
    torch.testing.assert_close(new, 0.5 * theirs, rtol=0.1, atol=1e-3)
    out = torch.randn(3, drafter.spec.hidden_size)
    torch.testing.assert_close(larger.logits(out)[:, of_present], drafter.logits(out))
    assert drafter.spec.draft_vocab_size == 20  # the drafter itself is unchanged
    unchanged = {
        name: value for name, value in drafter.state_dict().items() if name not in ("lm_head.weight", "d2t", "t2d")
    }
    assert all(torch.equal(larger.state_dict()[name], value) for name, value in unchanged.items())
