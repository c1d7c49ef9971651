"""Fixed shapes, which a GPU replays from CUDA graphs, give the text of growing shapes."""

from __future__ import annotations

import gc

import pytest
import torch

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.errors import DrafterforgeError
from drafterforge.runtime import static_batch
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target

PROMPTS = [[3, 14, 15, 9, 26, 5], [7], [4] * 17]
SHAPES = [(1, 0, 1), (5, 4, 1), (24, 3, 4)]


def fused(target) -> FusedDrafter:
    """A random drafter."""
    return FusedDrafter(tiny_drafter(target), target.backbone.embedding)


def cycles_of(answer) -> list[tuple[int, int]]:
    """Nodes and tokens of every cycle."""
    return [(cycle.num_nodes, cycle.accept_length) for cycle in answer.cycles]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_fixed_shapes_do_not_change_the_text(family):
    target = tiny_target(family)
    expected, drafter = [answer.tokens for answer in Engine(target).generate(PROMPTS, 18)], fused(target)
    for shape in SHAPES:
        growing = Engine(target, drafter, TreeShape(*shape)).generate(PROMPTS, 18)
        static = Engine(target, drafter, TreeShape(*shape), graphs=True).generate(PROMPTS, 18)
        assert [answer.tokens for answer in static] == [answer.tokens for answer in growing] == expected
        # the same trees except in the last cycles, whose depth only growing shapes cut
        for static_answer, growing_answer in zip(static, growing, strict=True):
            assert cycles_of(static_answer)[: -shape[1] - 2] == cycles_of(growing_answer)[: -shape[1] - 2]
    assert [answer.tokens for answer in Engine(target, graphs=True).generate(PROMPTS, 18)] == expected


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=1.0, seed=3), Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.3, seed=4)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
def test_fixed_shapes_sample_alike_and_can_be_invariant(sampling, dtype):
    target = tiny_target(dtype=dtype)
    mixed = [sampling, GREEDY, Sampling(temperature=1.0, seed=9)]
    expected = Engine(target, numerics="invariant").generate(PROMPTS, 14, mixed)
    static = Engine(target, fused(target), TreeShape(12, 3, 3), max_batch=2, numerics="invariant", graphs=True)
    assert [answer.tokens for answer in static.generate(PROMPTS, 14, mixed)] == [answer.tokens for answer in expected]


def test_samplings_that_differ_in_numbers_alone_share_a_cycle():
    target = tiny_target(eos_token_id=None)
    engine = Engine(target, fused(target), TreeShape(12, 3, 3), graphs=True)
    mixed = [Sampling(temperature=0.7, top_k=9, seed=1), Sampling(temperature=1.2, top_k=12, seed=2), GREEDY]
    for samplings in (mixed, mixed[::-1], [mixed[1], *mixed[::2]]):
        expected = [answer.tokens for answer in Engine(target).generate(PROMPTS, 14, samplings)]
        assert [answer.tokens for answer in engine.generate(PROMPTS, 14, samplings)] == expected
    assert [len(rows.cycles) for name, rows in engine.buffers.items() if name[0] == len(PROMPTS)] == [1]


@pytest.mark.slow
def test_buffers_grow_with_the_text_and_serve_the_next_request(monkeypatch):
    monkeypatch.setattr(static_batch, "FIRST_SLOTS", 32)
    monkeypatch.setattr("drafterforge.kernels.cache.BLOCK", 32)
    target = tiny_target(eos_token_id=None)
    engine = Engine(target, fused(target), TreeShape(10, 3, 3), graphs=True, max_batch=2)
    expected = [answer.tokens for answer in Engine(target).generate(PROMPTS[:2], 80)]
    assert [answer.tokens for answer in engine.generate(PROMPTS[:2], 80)] == expected
    sizes = {rows.slots for rows in engine.buffers.values()}
    assert sizes == {32, 64, 128}
    buffers = len(engine.buffers)
    assert [answer.tokens for answer in engine.generate(PROMPTS[:2], 80)] == expected
    assert len(engine.buffers) == buffers


@pytest.mark.slow
def test_the_least_recently_used_buffers_are_freed(monkeypatch):
    monkeypatch.setattr(static_batch, "MOST_BUFFERS", 2)
    monkeypatch.setattr(static_batch, "MOST_CYCLES", 1)
    target = tiny_target()
    engine = Engine(target, fused(target), TreeShape(5, 4, 1), graphs=True)
    expected = [answer.tokens for answer in Engine(target).generate(PROMPTS, 18)]
    for count in (1, 3, 2, 1, 3):
        assert [answer.tokens for answer in engine.generate(PROMPTS[:count], 18)] == expected[:count]
        assert len(engine.buffers) <= 2 and max(len(rows.cycles) for rows in engine.buffers.values()) == 1
    assert 3 in {name[0] for name in engine.buffers}  # the most recently used buffers
    sampled = [Sampling(temperature=1.0, seed=3)] * 3
    again = Engine(target).generate(PROMPTS, 18, sampled)
    assert [a.tokens for a in engine.generate(PROMPTS, 18, sampled)] == [a.tokens for a in again]


@pytest.mark.slow
def test_concurrent_batches_do_not_share_buffers():
    target = tiny_target(eos_token_id=None)
    expected = [answer.tokens for answer in Engine(target).generate(PROMPTS, 20)]
    for drafter in (None, fused(target)):
        engine = Engine(target, drafter, TreeShape(8, 3, 2), graphs=True)
        streams = [engine.stream(prompt, 20) for prompt in PROMPTS]
        last = [None] * len(PROMPTS)
        for _ in range(20):
            for index, stream in enumerate(streams):
                last[index] = next(stream, last[index])
        assert [answer.tokens for answer in last] == expected
        del streams, stream
        gc.collect()
        assert all(rows.free for rows in engine.buffers.values())


def test_a_tree_larger_than_the_buffers_is_refused():
    engine = Engine(tiny_target(), fused(tiny_target()), TreeShape(4, 2, 2), graphs=True)
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 9))
        with pytest.raises(DrafterforgeError, match="decodes with trees up to"):
            batch.cycle(TreeShape(4, 3, 2))


def test_a_warm_up_captures_every_number_of_rows():
    target = tiny_target(eos_token_id=None)
    target.eos_ids = set(range(61))  # every first token would end an answer
    engine = Engine(target, fused(target), TreeShape(8, 3, 2), max_batch=3, graphs=True)
    advances = []
    engine.warm_up(advances.append)
    assert advances == [1, 1, 1]
    captured = {name[0]: len(rows.cycles) for name, rows in engine.buffers.items()}
    assert captured == {1: 1, 2: 1, 3: 1}
    target.eos_ids = set()
    expected = [answer.tokens for answer in Engine(target).generate(PROMPTS, 12)]
    assert [answer.tokens for answer in engine.generate(PROMPTS, 12)] == expected
    assert {name[0]: len(rows.cycles) for name, rows in engine.buffers.items()} == captured
    plain = Engine(target, fused(target), max_batch=3)
    plain.warm_up(advances.append)
    assert len(advances) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_replayed_cycle_gives_the_same_text_and_stops_the_gpu_once(shape):
    target = tiny_target(eos_token_id=None, device="cuda")
    engine = Engine(target, fused(target), TreeShape(*shape))
    assert engine.graphs
    expected = Engine(target, graphs=False).generate(PROMPTS[:1], 40)[0].tokens
    assert engine.generate(PROMPTS[:1], 40)[0].tokens == expected
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 40))
        batch.cycle(engine.shape)  # captures graphs, or reuses those of the previous run
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with pytest.warns(UserWarning, match="synchronizing CUDA operation") as warned:
                batch.cycle(engine.shape)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(warned) == 1
