"""Pools decode the same cycles in fixed shapes, which a GPU replays from graphs, as in growing ones."""

from __future__ import annotations

import pytest
import torch

from drafterforge.errors import DrafterforgeError
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.pool_proposer import PoolProposer
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.runtime.static_pool import has_fixed_shapes, largest_shape
from drafterforge.schedulers.base import RandomScheduler
from drafterforge.tree.grow import TreeShape
from tests.models import NORMS, tiny_target
from tests.runtime.drafters import (
    PROMPTS,
    SHAPE,
    drafters_of_every_kind,
    full_drafters,
    hybrids,
    lora_drafters,
    mixed_drafters,
)
from tests.schedulers.policies import GRID, POLICIES

POOLS = {
    "LoRA experts": lambda target: lora_drafters(target, 4),
    "full experts": lambda target: full_drafters(target, 3, **NORMS["EAGLE-3.1"]),
    "two families": lambda target: mixed_drafters(target, 3),
}
SAMPLED = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=5)
TOKENS = 20


def pool_of(target, kind: str, selector: str, **options: object) -> Pool:
    """A pool of random drafters."""
    torch.manual_seed(3)
    options |= {"reward": "coverage"} if selector == "metasd_ucb" else {}
    return Pool({f"drafter {n}": drafter for n, drafter in enumerate(POOLS[kind](target))}, selector, **options)


def cycles_of(answer) -> list[tuple]:
    """Drafter, nodes and tokens of every cycle but the last ones, whose depth only growing shapes cut."""
    cycles = [(cycle.drafter, cycle.num_nodes, cycle.accept_length) for cycle in answer.cycles]
    ends = [sum(length for _, _, length in cycles[: index + 1]) for index in range(len(cycles))]
    return [cycle for cycle, end in zip(cycles, ends, strict=True) if end < TOKENS - 2 * SHAPE.depth]


def compare(target, pools, sampling=GREEDY) -> None:
    """Decode with growing and with fixed shapes, alone and together."""
    expected = [Engine(target).generate([prompt], TOKENS, sampling)[0].tokens for prompt in PROMPTS]
    for max_batch in (1, 3):
        growing, static = (
            Engine(target, pool, SHAPE, max_batch=max_batch, graphs=graphs).generate(PROMPTS, TOKENS, sampling)
            for pool, graphs in zip(pools(), (False, True), strict=True)
        )
        assert [answer.tokens for answer in static] == [answer.tokens for answer in growing] == expected
        if max_batch == 1:
            assert [cycles_of(answer) for answer in static] == [cycles_of(answer) for answer in growing]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("kind", "selector", "sampling"),
    [
        ("LoRA experts", "hedgespec", GREEDY),
        ("full experts", "hedgespec", GREEDY),
        ("full experts", "hedgespec-prompt", GREEDY),
        ("two families", "hedgespec-prompt", SAMPLED),
        *(("LoRA experts", name, SAMPLED) for name in ("hedgespec", "thompson", "metasd_ucb", "ucbspec")),
        *(("full experts", name, SAMPLED) for name in ("random", "hedgespec", "metasd_ucb")),
        *(("two families", name, SAMPLED) for name in ("random", "hedgespec")),
    ],
)
def test_pools_decode_the_same_cycles_in_fixed_shapes(kind, selector, sampling):
    target = tiny_target(eos_token_id=None)
    compare(target, lambda: [pool_of(target, kind, selector) for _ in range(2)], sampling)


@pytest.mark.parametrize("kind", ["full experts", "two families"])
def test_requests_begin_with_the_same_drafter_in_fixed_shapes(kind):
    target = tiny_target(eos_token_id=None)
    draws = torch.Generator().manual_seed(0)
    prompts = [torch.randint(1, 40, (size,), generator=draws).tolist() for size in (20, 30, 40, 50, 60, 150)]
    first = {}
    for graphs in (False, True):
        pool = pool_of(target, kind, "hedgespec-prompt")
        answers = Engine(target, pool, SHAPE, max_batch=1, graphs=graphs).generate(prompts, 8)
        first[graphs] = [answer.cycles[0].drafter for answer in answers]
    assert first[False] == first[True] and len(set(first[True])) > 1  # hedgespec begins with the first drafter


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", POLICIES)
def test_schedulers_choose_the_same_trees_in_fixed_shapes(name):
    target = tiny_target(eos_token_id=None)

    def pools() -> list[Pool]:
        return [pool_of(target, "LoRA experts", "hedgespec", scheduler=POLICIES[name](target)) for _ in range(2)]

    compare(target, pools)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("selector", ["hedgespec", "hedgespec-prompt", "metasd_ucb"])
@pytest.mark.parametrize("kind", POOLS)
def test_pools_decode_on_a_gpu(kind, selector):
    target = tiny_target(eos_token_id=None, device="cuda")
    compare(target, lambda: [pool_of(target, kind, selector) for _ in range(2)])


def test_rows_with_trees_of_their_own_share_a_cycle():
    target = tiny_target(eos_token_id=None)
    shapes = {"drafter 1": TreeShape(4, 2, 2), "drafter 2": TreeShape(14, 3, 4), "drafter 3": TreeShape(1, 0, 1)}
    compare(target, lambda: [pool_of(target, "LoRA experts", "random", shapes=shapes) for _ in range(2)])


def test_drafters_join_and_leave_while_requests_run():
    target = tiny_target(eos_token_id=None)
    expected = [Engine(target).generate([prompt], 40)[0].tokens for prompt in PROMPTS[:2]]
    *experts, late = lora_drafters(target, 4)
    engine = Engine(target, Pool(dict(zip("abc", experts, strict=True)), "random"), SHAPE, graphs=True)
    batch = engine.open_batch()
    with torch.inference_mode():
        rows = [batch.admit(*engine.read(prompt, 40)) for prompt in PROMPTS[:2]]
        for number in range(60):
            if not batch.rows:
                break
            batch.cycle(SHAPE)
            if number == 2:
                engine.add_drafter("late", late)
            if number == 4:
                engine.remove_drafter("a")
    assert [row.answer.tokens for row in rows] == expected
    used = {cycle.drafter for row in rows for cycle in row.answer.cycles[6:]}
    assert used == {"b", "c", "late"}


def test_a_drafter_that_does_not_stack_is_refused():
    target = tiny_target()
    every_kind = drafters_of_every_kind(target)
    with pytest.raises(DrafterforgeError, match="needs EAGLE-3 drafters of one architecture"):
        Engine(target, Pool(every_kind, "random"), SHAPE, graphs=True)
    engine = Engine(target, pool_of(target, "LoRA experts", "random"), SHAPE, graphs=True)
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 9))
        with pytest.raises(DrafterforgeError, match="'small' does not stack with"):
            engine.add_drafter("small", every_kind["small"])
    assert "small" not in engine.drafter.names


def test_rows_join_and_leave_after_a_drafter_has_joined():
    target = tiny_target(eos_token_id=None)
    *experts, late = lora_drafters(target, 3)
    engine = Engine(target, Pool(dict(zip("ab", experts, strict=True)), "random"), SHAPE, graphs=True)
    expected = [Engine(target).generate([prompt], 12)[0].tokens for prompt in PROMPTS[:2]]
    batch = engine.open_batch()
    with torch.inference_mode():
        first = batch.admit(*engine.read(PROMPTS[0], 12))
        batch.cycle(SHAPE)
        engine.add_drafter("late", late)
        second = batch.admit(*engine.read(PROMPTS[1], 12))
        while batch.rows:
            batch.cycle(SHAPE)
    assert [first.answer.tokens, second.answer.tokens] == expected


@pytest.mark.parametrize("newcomer", ["late", "retrieval"])
def test_a_drafter_for_which_there_is_no_memory_changes_nothing(newcomer, monkeypatch):
    target = tiny_target(eos_token_id=None)
    late = {"late": lora_drafters(target, 1)[0], "retrieval": hybrids(target)[3]}[newcomer]
    expected = [Engine(target).generate([prompt], 12)[0].tokens for prompt in PROMPTS[:2]]
    engine = Engine(
        target, pool_of(target, "LoRA experts", "hedgespec", scheduler=POLICIES["children"](target)), SHAPE, graphs=True
    )
    names, batch = engine.drafter.names, engine.open_batch()
    with torch.inference_mode():
        rows = [batch.admit(*engine.read(prompt, 12)) for prompt in PROMPTS[:2]]
        batch.cycle(SHAPE)
        with monkeypatch.context() as patch:
            patch.setattr(batch, "_gather", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.add_drafter(newcomer, late)
        assert engine.drafter.names == batch.selection.proposer.names == names
        while batch.rows:
            batch.cycle(SHAPE)
    assert [row.answer.tokens for row in rows] == expected


def test_a_drafter_that_joins_leaves_the_verified_keys():
    target = tiny_target(eos_token_id=None, dtype=torch.bfloat16)
    experts, prompt = lora_drafters(target, 3), [number % 50 + 3 for number in range(300)]
    expected = Engine(target, numerics="invariant").generate([prompt], 40)[0].tokens
    engine = Engine(
        target, Pool(dict(zip("ab", experts, strict=False)), "random"), SHAPE, numerics="invariant", graphs=True
    )
    batch = engine.open_batch()
    with torch.inference_mode():
        row = batch.admit(*engine.read(prompt, 40))
        batch.cycle(SHAPE)
        engine.add_drafter("late", experts[2])
        batch.cycle(SHAPE)
        engine.remove_drafter("a")
        while batch.rows:
            batch.cycle(SHAPE)
    assert row.answer.tokens == expected


def test_a_cycle_of_roots_alone_between_masked_ones():
    target = tiny_target(eos_token_id=None)
    members = {f"drafter {number}": drafter for number, drafter in enumerate(hybrids(target))}
    shapes = {"drafter 1": TreeShape(1, 0, 1)}
    answers = Engine(target, Pool(members, "random", shapes=shapes), SHAPE, graphs=True).generate(PROMPTS[:1], 30)
    assert answers[0].tokens == Engine(target).generate(PROMPTS[:1], 30)[0].tokens
    assert {cycle.num_nodes == 1 for cycle in answers[0].cycles if cycle.drafter == "drafter 1"} == {True}


def test_retrieval_joins_and_stays_alone():
    target = tiny_target(eos_token_id=None)
    experts, retrieval = lora_drafters(target, 2), hybrids(target)[3]
    engine = Engine(target, Pool({"a": experts[0]}, "random"), SHAPE, graphs=True)
    engine.generate(REPEATING[:1], 8)
    expected = Engine(target).generate(REPEATING[:1], 40)[0].tokens
    batch = engine.open_batch()
    with torch.inference_mode():
        row = batch.admit(*engine.read(REPEATING[0], 40))
        engine.add_drafter("retrieval", retrieval)
        for _ in range(3):
            batch.cycle(SHAPE)
        engine.remove_drafter("a")
        while batch.rows:
            batch.cycle(SHAPE)
    assert row.answer.tokens == expected
    assert row.answer.cycles[-1].drafter == "retrieval" and engine.drafter.names == ["retrieval"]


def test_the_divergence_reward_has_no_fixed_shapes():
    """The drafters' distributions stay on the device there."""
    target = tiny_target()
    drafters = dict(zip("ab", lora_drafters(target, 2), strict=True))
    for options, graphs in (({}, False), ({"reward": "coverage"}, True)):
        assert has_fixed_shapes(Pool(drafters, "metasd_ucb", **options)) == graphs
    with pytest.raises(DrafterforgeError, match="a selector without reward=divergence"):
        Engine(target, Pool(drafters, "metasd_ucb"), SHAPE, graphs=True)


def test_growing_policies_and_trees_of_their_own_do_not_share_fixed_shapes():
    target = tiny_target()
    experts = lora_drafters(target, 2)
    for shapes, graphs in (({}, True), ({"b": SHAPE}, False)):
        pool = Pool(dict(zip("ab", experts, strict=True)), scheduler=POLICIES["ltd"](target), shapes=shapes)
        assert has_fixed_shapes(pool) == graphs
    engine = Engine(target, Pool({"a": experts[0]}, "random", scheduler=POLICIES["ltd"](target)), SHAPE, graphs=True)
    with pytest.raises(DrafterforgeError, match="'b' does not stack with a"):
        engine.add_drafter("b", hybrids(target)[0])


def test_selectors_learn_nothing_after_the_end_nor_from_a_warm_up():
    target = tiny_target(eos_token_id=None)
    orders = []
    for graphs in (False, True):
        engine = Engine(target, pool_of(target, "LoRA experts", "thompson", carry=True), SHAPE, graphs=graphs)
        engine.warm_up()
        answers = [engine.generate([prompt], TOKENS)[0] for prompt in PROMPTS]
        orders.append([answer.cycles[0].drafter for answer in answers])
    assert orders[0] == orders[1]


def test_a_scheduler_with_many_trees_captures_few_cycles():
    target = tiny_target(eos_token_id=None)
    pool = pool_of(target, "LoRA experts", "static", scheduler=RandomScheduler(GRID), drafter="drafter 0")
    engine = Engine(target, pool, SHAPE, graphs=True)
    answers = engine.generate(PROMPTS, 60)
    shapes = {(cycle.depth, cycle.top_k) for answer in answers for cycle in answer.cycles}
    assert len(shapes) > 4
    assert all(len(rows.cycles) <= 2 * len(GRID.depths) for rows in engine.buffers.values())


def test_the_engine_s_tree_bounds_no_drafter_that_a_scheduler_serves():
    """Scheduled trees would be drafted at its width."""
    target, shape = tiny_target(eos_token_id=None), TreeShape(30, 5, 9)
    pool = pool_of(target, "LoRA experts", "random", scheduler=RandomScheduler(GRID))
    assert largest_shape(pool, shape) == TreeShape(10, 3, 3)
    assert Engine(target, pool, shape, graphs=True).generate(PROMPTS[:1], 12)[0].cycles
    assert largest_shape(Pool({**pool.drafters, "late": hybrids(target)[0]}, scheduler=pool.scheduler), shape) == shape


def test_another_drafter_needs_no_new_cycle():
    target = tiny_target(eos_token_id=None)
    engine = Engine(target, pool_of(target, "LoRA experts", "random"), SHAPE, graphs=True)
    answers = engine.generate(PROMPTS[:1], 60)
    assert len({cycle.drafter for cycle in answers[0].cycles}) == 4
    assert [len(rows.cycles) for rows in engine.buffers.values()] == [1]


REPEATING = [[5, 6, 7, 8, 9] * 4 + [5, 6], [3, 14, 15, 9, 26, 5], [4] * 17, [9, 8, 7, 9, 8]]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["hybrid", "retrieval", "pool, random", "pool, hedgespec"])
def test_retrieval_joins_trees_of_fixed_shapes(name, sampling):
    target = tiny_target(eos_token_id=None)
    kind, _, selector = name.partition(", ")

    def drafter() -> object:
        torch.manual_seed(3)
        members = hybrids(target)
        if kind == "pool":
            return Pool({f"drafter {number}": member for number, member in enumerate(members)}, selector)
        return members[{"hybrid": 0, "retrieval": 3}[kind]]

    expected = [Engine(target).generate([prompt], TOKENS, sampling)[0].tokens for prompt in REPEATING]
    for max_batch in (1, 3):
        growing, static = (
            Engine(target, drafter(), SHAPE, max_batch=max_batch, graphs=graphs).generate(REPEATING, TOKENS, sampling)
            for graphs in (False, True)
        )
        assert [answer.tokens for answer in static] == [answer.tokens for answer in growing] == expected
        if max_batch == 1 and (selector != "hedgespec" or sampling.temperature == 0):
            shapes = [[cycle[1:] for cycle in cycles_of(answer)] for answer in static]
            assert shapes == [[cycle[1:] for cycle in cycles_of(answer)] for answer in growing]
            assert sum(size > 1 for answer in shapes for size, _ in answer) > 3


def test_a_hybrid_s_gamma_is_what_was_accepted_where_retrieval_sees_no_distribution(monkeypatch):
    """The larger of the device's mass and retrieval's 0 or 1 would overrate it."""
    target, judged, learn = tiny_target(eos_token_id=None), [], PoolProposer.learn

    def watching(proposer, record, judgement):
        judged.extend([] if judgement is None else [(proposer.members.names, judgement)])
        learn(proposer, record, judgement)

    monkeypatch.setattr(PoolProposer, "learn", watching)
    torch.manual_seed(3)
    pool = Pool(dict(zip(("both", "eagle", "careful", "retrieval"), hybrids(target), strict=True)), "hedgespec")
    Engine(target, pool, SHAPE, graphs=True).generate(REPEATING, TOKENS, SAMPLED)
    for name in ("both", "careful", "retrieval", "eagle"):
        parts = [(part.gamma[names.index(name)], part.accepted[names.index(name)]) for names, part in judged]
        assert all(gamma.equal(accepted) for gamma, accepted in parts) == (name != "eagle")
