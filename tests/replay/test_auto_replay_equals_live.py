"""A replay of `auto` has the cycles of live decoding, and its decisions see the seconds that the replay charges."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import DrafterforgeError
from drafterforge.replay.auto_play import ReplayedBatch, replay_answer
from drafterforge.runtime.arms import RowArms
from drafterforge.runtime.batch import Batch
from drafterforge.runtime.engine import Engine, proposer_of
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Generation, Mark
from drafterforge.runtime.verify_costs import VerifyCosts
from drafterforge.runtime.worth import Worth
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target

PROMPTS = [[3, 14, 15, 9, 26, 5] * 3, [7], [4] * 17, [9, 8, 7, 9, 8]]
SHAPE = TreeShape(12, 6, 2)
COUNT = 40
NODES, SECONDS = (1, 4, 16), (0.010, 0.011, 0.020)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="module")
def hybrid(target) -> HybridDrafter:
    return HybridDrafter(FusedDrafter(tiny_drafter(target), target.backbone.embedding), Retrieval())


def costs() -> VerifyCosts:
    return VerifyCosts(NODES, SECONDS)


def engine_of(target: Target, hybrid: HybridDrafter, worth: Worth | None) -> Engine:
    return Engine(target, Pool({"both": hybrid}, "static", shapes={"both": SHAPE}, worth=worth), SHAPE)


def shapes_of(answer: Generation) -> list[tuple]:
    """The cycles of an answer, without their seconds."""
    return [(cycle.drafter, cycle.accept_length, cycle.num_nodes, cycle.depth, cycle.top_k) for cycle in answer.cycles]


def test_replayed_cycles_equal_live_cycles_position_by_position(target, hybrid):
    live = engine_of(target, hybrid, None).generate(PROMPTS, COUNT)
    engine = engine_of(target, hybrid, None)
    for prompt, answer in zip(PROMPTS, live, strict=True):
        replay = replay_answer(engine, prompt, answer.tokens, costs(), COUNT)
        assert shapes_of(replay) == shapes_of(answer) and replay.tokens == answer.tokens
    assert len({shape for answer in live for shape in shapes_of(answer)}) > 5


def test_rows_that_are_decoded_together_are_replayed_together(target, hybrid):
    live = engine_of(target, hybrid, None).generate(PROMPTS, COUNT)
    engine = engine_of(target, hybrid, None)
    with torch.inference_mode():
        batch = ReplayedBatch(engine, costs())
        rows = [
            batch.admit_recorded(prompt, answer.tokens, engine.read(prompt, COUNT)[1])
            for prompt, answer in zip(PROMPTS, live, strict=True)
        ]
        while batch.rows:
            count = len(batch.rows)
            batch.cycle(SHAPE)
            assert all(row.answer.cycles[-1].verify_s >= costs().of(count, count) for row in batch.rows)
    assert [shapes_of(row.answer) for row in rows] == [shapes_of(answer) for answer in live]


class PricedBatch(Batch):
    """Live decoding whose clock reads the seconds that a replay charges."""

    def charge(self, record: CycleRecord, marks: Sequence[Mark]) -> None:
        super().charge(record, marks)
        batch, count = record.tree.tokens.shape
        record.seconds |= {"verify": costs().of(batch * count, batch), "host": 0.0}


@pytest.mark.parametrize("names", [("first",), ("first", "second")])
def test_at_equal_seconds_auto_decides_as_live(target, hybrid, monkeypatch, names):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # drafting takes no time
    monkeypatch.setattr(RowArms, "lead", lambda *_: 1.0)  # a drafter that has woken drafts
    torch.manual_seed(3)
    second = HybridDrafter(FusedDrafter(tiny_drafter(target, 30), target.backbone.embedding), hybrid.retrieval)
    drafters = {name: {"first": hybrid, "second": second}[name] for name in names}
    live, replayed = (
        Engine(target, Pool(drafters, "static", shapes=dict.fromkeys(names, SHAPE), worth=Worth(costs())), SHAPE)
        for _ in range(2)
    )
    cycles = []
    for prompt in PROMPTS * 3:
        with torch.inference_mode():
            batch = PricedBatch(target, proposer_of(live.drafter, SHAPE), invariant=live.numerics == "invariant")
            answer = batch.admit(prompt, live.read(prompt, COUNT)[1]).answer
            while batch.rows:
                batch.cycle(SHAPE)
        replay = replay_answer(replayed, prompt, answer.tokens, costs(), COUNT)
        assert shapes_of(replay) == shapes_of(answer)
        cycles += answer.cycles
    assert {cycle.num_nodes > 1 for cycle in cycles} == {True, False}
    assert {cycle.drafter for cycle in cycles} == {*names}


def test_decisions_follow_the_charged_seconds_and_the_text_is_the_recorded_one(target, hybrid):
    answers, sizes = Engine(target).generate(PROMPTS * 3, COUNT), []
    for per_node in (0.0, 0.010):
        charged = VerifyCosts((1, 16), (0.010, 0.010 + 15 * per_node))
        assumed = VerifyCosts(charged.nodes, tuple(3 * charged.seconds))
        engine = engine_of(target, hybrid, Worth(assumed))
        cycles = []
        for answer in answers:
            replay = replay_answer(engine, answer.prompt, answer.tokens, charged, COUNT)
            assert replay.tokens == answer.tokens
            cycles += replay.cycles
        assert all(cycle.verify_s == pytest.approx(charged.of(cycle.num_nodes, 1)) for cycle in cycles)
        assert assumed.of(4, 1) == pytest.approx(charged.of(4, 1))
        sizes.append(np.mean([cycle.num_nodes for cycle in cycles]))
    assert sizes[1] < 0.8 * sizes[0]


def test_an_incomplete_answer_is_refused(target, hybrid):
    (answer,) = Engine(target).generate(PROMPTS[:1], COUNT)
    with pytest.raises(DrafterforgeError, match="must be complete"):
        replay_answer(engine_of(target, hybrid, None), answer.prompt, answer.tokens[:-3], costs(), COUNT)
