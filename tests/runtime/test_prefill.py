"""Chunked prefill: prompts are read in chunks between the cycles of other rows."""

from __future__ import annotations

import pytest
import torch

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.prefill import Prefill
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target, uneven

LONG = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3, 23]
SHORT = [7, 1, 8]
SHAPE = TreeShape(num_tokens=6, depth=3, top_k=2)


def eagle3(target, seed):
    torch.manual_seed(seed)
    return FusedDrafter(uneven(tiny_drafter(target)), target.backbone.embedding)


def drafters(target):
    first, second = eagle3(target, 0), eagle3(target, 1)
    return {
        "none": None,
        "eagle3": first,
        "retrieval": Retrieval(),
        "hybrid": HybridDrafter(first, Retrieval()),
        "pool": Pool({"a": first, "b": second, "store": Retrieval()}, "hedgespec"),
    }


@pytest.mark.parametrize("chunk", [1, 3, 5, 12, 13])
def test_chunks_give_the_keys_and_features_of_one_pass(chunk):
    target = tiny_target()
    full, parts = Prefill(target, LONG, len(LONG), None), Prefill(target, LONG, chunk, None)
    cache, chunked_cache = target.new_cache(), target.new_cache()
    with torch.inference_mode():
        full.read(cache)
        while not parts.is_read:
            parts.read(chunked_cache)
    assert len(parts.parts) == -(-len(LONG) // chunk)
    torch.testing.assert_close(parts.features, full.features)
    torch.testing.assert_close(parts.state, full.state)
    count = len(LONG)
    torch.testing.assert_close(chunked_cache.data[:, :, :, :, :count], cache.data[:, :, :, :, :count])


@pytest.mark.parametrize("name", ["none", "eagle3", "retrieval", "hybrid", "pool"])
def test_rows_with_chunked_prefill_answer_and_draft_as_single_ones(name):
    target = tiny_target(eos_token_id=None)
    (alone,) = Engine(target, drafters(target)[name], SHAPE).generate([SHORT], 24)
    (expected,) = Engine(target, drafters(target)[name], SHAPE).generate([LONG], 12)
    engine = Engine(target, drafters(target)[name], SHAPE)
    with torch.inference_mode():
        batch = engine.open_batch()
        batch.prefill_chunk = 3
        first = batch.admit(*engine.read(SHORT, 24))
        joining = batch.begin(*engine.read(LONG, 12))
        waits = 0
        while not batch.advance(joining):
            batch.cycle(engine.shape)  # the first row continues
            waits += 1
        while batch.rows:
            batch.cycle(engine.shape)
    assert waits == 4 and not batch.joining
    assert first.answer.tokens == alone.tokens
    assert joining.row.answer.tokens == expected.tokens
    assert joining.row.answer.time_s["prefill"] > 0
    assert [c.accept_length for c in joining.row.answer.cycles] == [c.accept_length for c in expected.cycles]


def test_a_drafter_that_joins_the_pool_reads_prompts_that_are_half_read():
    target = tiny_target(eos_token_id=None)
    first, second = eagle3(target, 0), eagle3(target, 1)
    engine = Engine(target, Pool({"a": first}, "static"), SHAPE)
    (expected,) = Engine(target, Pool({"b": second}, "static"), SHAPE).generate([LONG], 12)
    with torch.inference_mode():
        batch = engine.open_batch()
        batch.prefill_chunk = 3
        joining = batch.begin(*engine.read(LONG, 12))
        batch.advance(joining)
        engine.add_drafter("b", second)
        engine.remove_drafter("a")
        while not batch.advance(joining):
            pass
        while batch.rows:
            batch.cycle(engine.shape)
    assert joining.row.answer.tokens == expected.tokens
    assert [c.accept_length for c in joining.row.answer.cycles] == [c.accept_length for c in expected.cycles]


def test_rows_keep_their_keys_while_others_join_leave_and_overtake_them():
    target = tiny_target(eos_token_id=None)
    prompts, limits = [SHORT, LONG, LONG[3:]], [4, 16, 12]
    expected = [
        Engine(target, eagle3(target, 0), SHAPE).generate([p], n)[0] for p, n in zip(prompts, limits, strict=True)
    ]
    engine = Engine(target, eagle3(target, 0), SHAPE)
    with torch.inference_mode():
        batch = engine.open_batch()
        batch.prefill_chunk = 5
        first = batch.admit(*engine.read(prompts[0], limits[0]))
        slow, fast = (batch.begin(*engine.read(p, n)) for p, n in zip(prompts[1:], limits[1:], strict=True))
        batch.advance(slow)
        while not batch.advance(fast):
            batch.cycle(engine.shape)
        while batch.rows:  # the first row and the overtaking one leave
            batch.cycle(engine.shape)
        assert batch.joining == [slow]
        while not batch.advance(slow):
            pass
        while batch.rows:
            batch.cycle(engine.shape)
    for row, answer in zip((first, slow.row, fast.row), expected, strict=True):
        assert row.answer.tokens == answer.tokens
        assert [c.accept_length for c in row.answer.cycles] == [c.accept_length for c in answer.cycles]


def test_an_abandoned_prompt_is_forgotten():
    engine = Engine(tiny_target(), None)
    with torch.inference_mode():
        batch = engine.open_batch()
        batch.prefill_chunk = 3
        joining = batch.begin(*engine.read(LONG, 12))
        batch.advance(joining)
        batch.abandon(joining)
    assert not batch.joining and not batch.rows
