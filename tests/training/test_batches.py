"""Packed batches are a function of data, seed and step, and stay within their budget."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterforge.training.batches import PackedData, plan_batches


@dataclass
class Row:
    input_ids: list[int]
    loss_mask: list[int]


@dataclass
class View:
    features: torch.Tensor
    states: torch.Tensor
    argmax: torch.Tensor


def data(seed: int | None, first: int = 0, num_rows: int = 11, budget: int = 20) -> PackedData:
    """Rows whose tokens are the row's number, and features with the same number."""
    rows = [Row([i] * (3 + i % 5), [0, 0] + [1] * (1 + i % 5)) for i in range(num_rows)]

    def capture(indices: list[int]) -> list[View]:
        def view(i: int) -> View:
            length = len(rows[i].input_ids)
            return View(torch.full((length, 6), float(i)), torch.full((length, 2), float(i)), torch.full((length,), i))

        return [view(i) for i in indices]

    return PackedData(rows, capture, budget, seed=seed, first_batch=lambda: first)


def read(packed: PackedData, count: int) -> list[list[int]]:
    """Tokens of the first `count` batches."""
    return [batch.tokens.tolist() for batch in islice(packed, count)]


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), budget=st.integers(1, 60), seed=st.integers(0, 9))
def test_every_row_is_in_one_batch_and_only_a_lone_row_exceeds_the_budget(lengths, budget, seed):
    batches = plan_batches(lengths, budget, torch.Generator().manual_seed(seed))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[i] for i in batch) <= budget


def test_the_plan_is_a_function_of_seed_and_epoch():
    torch.manual_seed(1)
    plans = [data(7).plan(epoch) for epoch in range(3)]
    torch.manual_seed(2)
    assert plans == [data(7).plan(epoch) for epoch in range(3)]
    assert plans[0] != plans[1] and plans[0] != data(8).plan(0)


def test_a_batch_does_not_depend_on_the_first_batch_that_was_read():
    complete = read(data(7), 30)
    for first in (1, 3, 4, 5, 9, 17):
        assert read(data(7, first), 30 - first) == complete[first:]


def test_without_a_seed_the_rows_come_once_in_order():
    tokens = [token for batch in data(None) for token in batch.tokens.tolist()]
    assert tokens == sorted(tokens) and len(tokens) == sum(data(None).lengths)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_pack_keeps_tokens_masks_positions_and_features_together(seed):
    for batch in islice(data(seed), 6):
        assert sum(batch.lengths) == batch.tokens.numel()
        assert batch.positions.tolist() == [p for length in batch.lengths for p in range(length)]
        assert batch.loss_mask.tolist() == (batch.positions >= 2).tolist()
        assert torch.equal(batch.features[:, 0].long(), batch.tokens)
        assert torch.equal(batch.states[:, 1].long(), batch.tokens)
        assert torch.equal(batch.argmax, batch.tokens)
