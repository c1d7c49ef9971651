"""Drafters join and leave a pool while requests run, and refused changes have no effect."""

from __future__ import annotations

import pytest
import torch

from drafterforge.drafters.eagle3.stack import StackedGroup
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.pool_proposer import PoolProposer
from drafterforge.runtime.prefill import Prefill
from drafterforge.runtime.shapes import default_shape, within
from drafterforge.selectors import selector
from drafterforge.tree.grow import TreeShape
from tests.runtime.drafters import PROMPTS, SHAPE, drafters_of_every_kind, lora_drafters


@pytest.mark.slow
def test_drafters_join_and_leave_while_requests_run(target):
    expected = [Engine(target).generate([prompt], 24)[0].tokens for prompt in PROMPTS[:2]]
    drafters = drafters_of_every_kind(target)
    late = {name: drafters.pop(name) for name in ("chat", "small", "other")}
    engine = Engine(target, Pool(drafters, "random"), SHAPE)
    batch = engine.open_batch()
    with torch.inference_mode():
        rows = [batch.admit(*engine.read(prompt, 24)) for prompt in PROMPTS[:2]]
        for number in range(40):
            if not batch.rows:
                break
            batch.cycle(SHAPE)
            if number < 3:
                engine.add_drafter(*list(late.items())[number])
            if number in (2, 4):
                engine.remove_drafter({2: "sql", 4: "chat"}[number])
    assert [row.answer.tokens for row in rows] == expected
    used = [cycle.drafter for row in rows for cycle in row.answer.cycles[5:]]
    assert used and not {"sql", "chat"} & set(used)
    assert engine.drafter.names == ["general", "block", "block sql", "retrieval", "small", "other"]
    assert Engine(target, engine.drafter, SHAPE).generate(PROMPTS[:1], 24)[0].tokens == expected[0]


def test_a_drafter_that_joins_has_the_state_of_one_that_was_there(target):
    drafters = lora_drafters(target, 2)
    engine = Engine(target, Pool({"a": drafters[0]}, "static", drafter="a"), SHAPE)
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 30))
        for _ in range(3):
            batch.cycle(SHAPE)
        engine.add_drafter("b", drafters[0])
        ours, theirs = (part for _, part in batch.proposer.members.groups)
        torch.testing.assert_close(ours.last, theirs.last, rtol=1e-4, atol=1e-5)
        batch.cycle(SHAPE)
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)


def test_an_idle_selector_that_carries_over_follows_the_pool(target):
    drafters = lora_drafters(target, 3)
    pool = Pool({"a": drafters[0], "b": drafters[1]}, "ucb1", carry=True, shapes={"a": TreeShape(12, 5, 2)})
    engine = Engine(target, pool, SHAPE)
    engine.generate([PROMPTS[0]], 20)
    learned = pool.idle[-1].counts.copy()
    engine.add_drafter("c", drafters[2])
    chooser = pool.selector(SHAPE)
    assert chooser.drafters == ["a", "b", "c"] and chooser.counts.tolist() == [*learned, 0.0]
    pool.idle.append(chooser)
    engine.remove_drafter("a")
    assert pool.selector(SHAPE).counts.tolist() == [learned[1], 0.0]


@pytest.mark.parametrize(("owner", "name"), [(PoolProposer, "join"), (StackedGroup, "admit"), (Prefill, "read_again")])
def test_a_drafter_whose_addition_fails_is_in_no_batch(target, owner, name, monkeypatch):
    drafters = lora_drafters(target, 2)
    engine = Engine(target, Pool({"a": drafters[0]}, "static", drafter="a"), SHAPE)
    expected = Engine(target).generate([PROMPTS[0]], 20)[0].tokens
    batch = engine.open_batch()
    with torch.inference_mode():
        row = batch.admit(*engine.read(PROMPTS[0], 20))
        batch.cycle(SHAPE)
        late = batch.begin(*engine.read(PROMPTS[0], 20))
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.add_drafter("b", HybridDrafter(drafters[1], Retrieval()))
        assert engine.drafter.names == batch.proposer.names == list(batch.proposer.members.drafters) == ["a"]
        assert not batch.proposer.members.indices
        while not batch.advance(late):
            pass
        while batch.rows:
            batch.cycle(SHAPE)
    assert row.answer.tokens == late.row.answer.tokens == expected


def test_costs_follow_the_drafters_of_the_pool(target):
    drafters = lora_drafters(target, 3)
    engine = Engine(target, Pool(dict(zip("ab", drafters, strict=False)), "normalhedge", costs=[1.0, 2.0]), SHAPE)
    with pytest.raises(ConfigError, match="add 'c' with cost=SECONDS"):
        engine.add_drafter("c", drafters[2])
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 12))
        engine.add_drafter("c", drafters[2], cost=3.0)
        batch.cycle(SHAPE)
        engine.remove_drafter("a")
        batch.cycle(SHAPE)
        assert batch.proposer.rows[0].selector.costs.tolist() == [2.0, 3.0]
    assert engine.drafter.options["costs"] == [2.0, 3.0]
    assert engine.generate(PROMPTS[:1], 12)[0].tokens == Engine(target).generate(PROMPTS[:1], 12)[0].tokens


def start_request(engine, prompt=PROMPTS[0]):
    """A batch with a running request, and its row."""
    batch = engine.open_batch()
    with torch.inference_mode():
        row = batch.admit(*engine.read(prompt, 16))
        batch.cycle(SHAPE)
    return batch, row


def finish_request(batch, row):
    with torch.inference_mode():
        while batch.rows:
            batch.cycle(SHAPE)
    return row.answer.tokens


@pytest.mark.parametrize("busy", [False, True])
def test_a_refused_removal_changes_nothing(target, busy):
    expected = Engine(target).generate(PROMPTS[:1], 16)[0].tokens
    engine = Engine(target, Pool(drafters_of_every_kind(target), "static", drafter="general"), SHAPE)
    batch = start_request(engine) if busy else None
    names = engine.drafter.names
    with pytest.raises(ConfigError, match="'general', which cannot be removed"):
        engine.remove_drafter("general")
    assert engine.drafter.names == names
    assert batch is None or finish_request(*batch) == expected
    assert engine.generate(PROMPTS[:1], 16)[0].tokens == expected


@pytest.mark.parametrize("graphs", [False, True])
def test_a_drafter_that_joins_drafts_the_tree_of_its_kind(target, graphs):
    """Requests that run draft as deep as their selectors know; fixed shapes bound the tree."""
    (eagle,) = lora_drafters(target, 1)
    engine = Engine(target, Pool({"eagle": eagle}, "random"), SHAPE, graphs=graphs)
    batch, row = start_request(engine)
    engine.add_drafter("both", HybridDrafter(eagle, Retrieval()))
    finish_request(batch, row)
    tree = default_shape(target.device, target.dtype, "hybrid")
    assert tree.num_tokens > SHAPE.num_tokens and tree.depth > SHAPE.depth
    for answer, depth in ((row.answer, SHAPE.depth), (engine.generate(PROMPTS[:1], 30)[0], tree.depth)):
        depths = {(cycle.depth, cycle.top_k) for cycle in answer.cycles if cycle.drafter == "both"}
        assert max(depths) == (SHAPE.depth if graphs else depth, tree.top_k)
    assert engine.drafter.shapes == {"both": within(tree, SHAPE) if graphs else tree}
    engine.remove_drafter("both")
    assert engine.drafter.shapes == {}


def immutable_selector(names, levels):
    """A selector that refuses every change of its pool."""
    learner = selector("normalhedge", names, max(levels), levels=levels)

    def refuse(*_):
        raise ConfigError("never")

    learner.add_drafter = learner.remove_drafter = refuse
    return learner


def test_a_change_that_a_running_request_s_selector_refuses_does_not_happen(target):
    expected = Engine(target).generate(PROMPTS[:1], 16)[0].tokens
    drafters = drafters_of_every_kind(target)
    late = drafters.pop("chat")
    engine = Engine(target, Pool(drafters, immutable_selector), SHAPE)
    batch = start_request(engine)
    for change in (lambda: engine.remove_drafter("sql"), lambda: engine.add_drafter("chat", late)):
        with pytest.raises(ConfigError, match="never"):
            change()
        assert engine.drafter.names == batch[0].proposer.names == list(drafters)
    assert finish_request(*batch) == expected


def test_a_refused_addition_changes_nothing(target):
    drafters = lora_drafters(target, 3)
    engine = Engine(target, Pool(dict(zip("ab", drafters, strict=False)), "normalhedge", costs=[1.0, 2.0]), SHAPE)
    batch = start_request(engine)
    with pytest.raises(ConfigError, match="must be > 0, got -1"):
        engine.add_drafter("c", drafters[2], cost=-1.0)
    assert engine.drafter.names == ["a", "b"] and engine.drafter.options["costs"] == [1.0, 2.0]
    assert finish_request(*batch) == engine.generate(PROMPTS[:1], 16)[0].tokens
