"""Block drafters read, judge and draft on a GPU without waiting for it."""

from __future__ import annotations

import pytest
import torch

from drafterforge.drafters.block.fused import StackedBlocks
from drafterforge.drafters.block.propose import BlockGroup
from drafterforge.drafters.judging import Truth
from drafterforge.tree.grow import TreeShape
from tests.drafters.blocks import block_experts
from tests.gpu_rehearsal.tools import rehearse
from tests.models import tiny_target

LENGTHS, COUNTS = (9, 5), [2, 2]


def cycles(device: str, values: object = None):
    """Log of two cycles of two rows; the trees are what the host reads."""
    target = tiny_target(device=device)
    torch.manual_seed(3)
    experts = block_experts(target, 3, markov_rank=4, confidence=True)
    texts = [torch.randint(3, 59, (length,)).to(device) for length in LENGTHS]
    features = [torch.randn(length, 3 * target.config.hidden_size).to(device) for length in LENGTHS]
    following = torch.randint(3, 59, (2, 3)).to(device)
    more = torch.randn(2, 3, 3 * target.config.hidden_size).to(device)
    shapes = []
    with torch.inference_mode(), rehearse(values) as log:
        group = BlockGroup(StackedBlocks(experts))
        for text, part in zip(texts, features, strict=True):
            group.admit(text, part[:-1])
        for judging in (False, True):
            group.commit(following, more, COUNTS)
            truth = Truth(following[:, :2], None) if judging else None
            judgement = group.read(truth, [3] * 3)
            shapes.append(None if judgement is None else judgement.accepted.shape)
            for rows in ([0, 1], [1]):
                root = group.roots[rows[0] :]
                shapes.append(group.guesses(1, rows).shape)
                shapes.append(group.draft(2, rows, root, TreeShape(8, 3, 2)).tokens.shape)
    return log, shapes


def test_block_drafters_read_judge_and_draft_without_a_wait():
    real, shapes = cycles("cpu")
    rehearsal, rehearsed = cycles("meta", real)
    assert rehearsal.reads == {} and rehearsed == shapes


@pytest.mark.parametrize("count", [1, 3])
def test_a_group_has_a_row_of_keys_for_each_drafter_and_text(count):
    group = BlockGroup(StackedBlocks(block_experts(tiny_target(device="meta"), count)))
    with torch.inference_mode(), rehearse():
        for length in LENGTHS:
            group.admit(
                torch.zeros(length, dtype=torch.long, device="meta"), torch.zeros(length - 1, 96, device="meta")
            )
    assert group.cache.data.shape[2] == 2 * count
