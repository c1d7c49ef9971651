"""Replayed cycles equal live cycles for every drafter and selector."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drafterforge.drafters.causal_lm.small import SmallLM
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import DrafterforgeError
from drafterforge.replay.answer_recorder import record_answers
from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.replay.selector_play import RecordedAnswers, play_selector, tune_options
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.selectors import names
from drafterforge.selectors import selector as build_selector
from drafterforge.selectors.base import Feedback
from drafterforge.tree.grow import TreeShape
from tests.drafters.blocks import block_experts
from tests.models import tiny_target
from tests.runtime.drafters import full_drafters, lora_drafters

SHAPE = TreeShape(9, 3, 3)
PROMPTS = [[3, 14, 15, 9, 26, 5], [7, 8], [4] * 17]
COUNT = 40


@pytest.fixture(scope="module")
def everything():
    """A target, a pool of every kind, shapes for some of its drafters, and the target's answers."""
    target = tiny_target(eos_token_id=None)
    experts = lora_drafters(target, 3)
    small = SmallLM(tiny_target(num_hidden_layers=4, hidden_size=16, intermediate_size=24))
    drafters = {"a": experts[0], "b": experts[1], "c": full_drafters(target, 1)[0], "d": experts[2], "small": small}
    drafters["retrieval"] = Retrieval(min_probability=1e-3, min_expected=0.0)
    shapes = {"retrieval": TreeShape(8, 6, 2), "c": TreeShape(6, 2, 3)}
    return target, drafters, shapes, Engine(target).generate(PROMPTS, COUNT)


@pytest.fixture(scope="module")
def recorded(everything) -> RecordedAnswers:
    """The recorded counterfactuals of the answers."""
    target, drafters, shapes, answers = everything
    pool = Pool(drafters, shapes=shapes)
    return record_answers(target, pool, SHAPE, answers, branches=True)["static"]


def live_cycles(answer) -> list[tuple]:
    """Drafter, accept length and tree of each live cycle."""
    return [(cycle.drafter, cycle.accept_length, cycle.depth, cycle.num_nodes, cycle.top_k) for cycle in answer.cycles]


def replayed_cycles(recorded, cycles) -> list[tuple]:
    """Drafter, accept length and tree of each replayed cycle."""
    return [
        (recorded.names[cycle.drafter], cycle.accept_length, cycle.depth, cycle.num_nodes, cycle.top_k)
        for cycle in cycles
    ]


SELECTORS = [
    "hedgespec",
    "hedgespec-prompt",
    "metasd_ucb",
    "metasd_exp3",
    "metasd_halving",
    "normalhedge",
    "ucbspec",
    "exp3spec",
]


@pytest.mark.slow
@pytest.mark.parametrize("selector", [*SELECTORS, "thompson", "random", "ftl", "ucb1"])
def test_replayed_cycles_equal_live_cycles(everything, recorded, selector):
    target, drafters, shapes, _ = everything
    pool = Pool(drafters, selector, shapes=shapes, seed=3)
    live = Engine(target, pool, SHAPE, max_batch=1).generate(PROMPTS, COUNT)
    played = recorded.run(recorded.maker(selector, seed=3))
    used = set()
    for answer, cycles in zip(live, played, strict=True):
        assert live_cycles(answer) == replayed_cycles(recorded, cycles)
        used |= {cycle.drafter for cycle in answer.cycles}
    assert len(used) > 1


def test_requests_begin_by_the_prompt_in_replays_as_live():
    target = tiny_target(eos_token_id=None)
    pool = dict(zip("abc", full_drafters(target, 3), strict=True))
    pool |= {"block": block_experts(target, 1)[0], "retrieval": Retrieval()}
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 40, size).tolist() for size in (1, 30, 40, 50, 60, 150)]
    recorded = record_answers(target, Pool(pool), SHAPE, Engine(target).generate(prompts, 8))["static"]
    rates = np.array([counterfactual.prompt_hit_rates for counterfactual in recorded.counterfactuals])
    assert np.isnan(rates[:, 3:]).all() and np.isnan(rates[0]).all() and (np.ptp(rates[1:, :3], axis=1) > 0).all()
    first = {}
    for selector in ("hedgespec", "hedgespec-prompt"):
        live = Engine(target, Pool(pool, selector), SHAPE, max_batch=1).generate(prompts, 8)
        for answer, cycles in zip(live, recorded.run(recorded.maker(selector)), strict=True):
            assert live_cycles(answer) == replayed_cycles(recorded, cycles)
        first[selector] = [answer.cycles[0].drafter for answer in live]
    assert first["hedgespec"] == ["a"] * 6
    assert first["hedgespec-prompt"] == ["a", *("abc"[best] for best in rates[1:, :3].argmax(axis=1))]
    assert len(set(first["hedgespec-prompt"])) > 1
    with pytest.raises(DrafterforgeError, match="needs counterfactuals with hit rates on prompts"):
        play_selector(recorded.maker("hedgespec-prompt")(), replace(recorded.counterfactuals[0], prompt_hit_rates=None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "worth",
    [
        {"min_reach": 0.01, "min_probability": 1e-4, "min_retrieval_tokens": 9.0},
        {},
        {"min_reach": 0.9, "min_probability": 0.0, "min_retrieval_tokens": 0.01},
        {"trust": 0.1, "min_reach": 0.0, "min_probability": 1e-3, "min_retrieval_tokens": 1.5},
    ],
)
def test_trees_with_tokens_of_retrieval_are_replayed_too(everything, worth):
    target, drafters, _, answers = everything
    retrieval = drafters["retrieval"]
    hybrids = {name: HybridDrafter(drafters[name], retrieval, **worth) for name in "ab"}
    pool = {"a+": hybrids["a"], "d": drafters["d"], "b+": hybrids["b"], "retrieval": retrieval}
    shapes = {name: TreeShape(12, 7, 3) for name in ("a+", "b+")}
    recorded = record_answers(target, Pool(pool, shapes=shapes), SHAPE, answers, branches=True)["static"]
    for selector in ("hedgespec", "hedgespec-prompt", "metasd_ucb", "thompson"):
        live = Engine(target, Pool(pool, selector, shapes=shapes, seed=3), SHAPE, max_batch=1).generate(PROMPTS, COUNT)
        for answer, cycles in zip(live, recorded.run(recorded.maker(selector, seed=3)), strict=True):
            assert live_cycles(answer) == replayed_cycles(recorded, cycles)
    for index, name in enumerate(pool):
        alone = Engine(
            target, Pool({name: pool[name]}, "static", shapes={k: v for k, v in shapes.items() if k == name}), SHAPE
        )
        for answer, cycles in zip(alone.generate(PROMPTS, COUNT), recorded.alone(index), strict=True):
            assert live_cycles(answer) == replayed_cycles(recorded, cycles)
    accepted = np.sum([counterfactual.accepted.sum(axis=1) for counterfactual in recorded.counterfactuals], axis=0)
    assert accepted[0] > accepted[1]  # a hybrid proposes the tokens of both, and retrieval adds some


def test_selectors_that_draw_are_replayed_with_their_seed(recorded):
    for name in ("random", "thompson"):
        assert recorded.run(recorded.maker(name, seed=3)) != recorded.run(recorded.maker(name, seed=4))


def feedback_of(pool: dict, shapes: dict, target, reward: str) -> list[Feedback]:
    """What a bandit with this reward observes live in the first answer."""
    observed = []

    def recording(names, levels):
        bandit = build_selector("metasd_ucb", names, max(levels), levels=levels, reward=reward)
        observe = bandit.observe
        bandit.observe = lambda feedback: (observed.append(feedback), observe(feedback))
        return bandit

    Engine(target, Pool(pool, recording, shapes=shapes), SHAPE, max_batch=1).generate(PROMPTS[:1], COUNT)
    return observed


REWARDS = pytest.mark.parametrize(("reward", "key"), [("coverage", "coverage"), ("divergence", "overlap")])


@REWARDS
def test_recorded_rewards_equal_those_of_live_cycles(everything, recorded, reward, key):
    target, drafters, shapes, _ = everything
    observed = feedback_of(drafters, shapes, target, reward)
    table, start = getattr(recorded.counterfactuals[0].outcomes[0], key), 1 + len(PROMPTS[0])
    values = [table[feedback.drafter, feedback.position - start] for feedback in observed]
    assert values == pytest.approx([getattr(feedback, key) for feedback in observed], abs=1e-5)
    assert len({*values}) > 5
    assert {feedback.drafter for feedback in observed} == set(range(len(drafters)))
    assert all(feedback.coverage is None or feedback.overlap is None for feedback in observed)


@REWARDS
def test_rewards_of_trees_with_tokens_of_retrieval_are_recorded_too(everything, reward, key):
    target, drafters, _, answers = everything
    retrieval = drafters["retrieval"]
    pool = {"a+": HybridDrafter(drafters["a"], retrieval, min_reach=0.01), "c": drafters["c"]}
    shapes = {"a+": TreeShape(12, 7, 3), "c": TreeShape(6, 2, 3)}
    recorded = record_answers(target, Pool(pool, shapes=shapes), SHAPE, answers[:1], branches=True)["static"]
    table, start = getattr(recorded.counterfactuals[0].outcomes[0], key), 1 + len(PROMPTS[0])
    observed = feedback_of(pool, shapes, target, reward)
    values = [table[feedback.drafter, feedback.position - start] for feedback in observed]
    assert values == pytest.approx([getattr(feedback, key) for feedback in observed], abs=1e-5)
    assert {feedback.drafter for feedback in observed} == {0, 1} and max(values) > 0.01


def test_counterfactuals_without_coverages_are_refused_by_selectors_that_need_them():
    counterfactual = counterfactual_of([[0, 0, 2, 2, 2], [0, 0, 1, 1, 1]])
    with pytest.raises(DrafterforgeError, match="metasd_ucb needs counterfactuals with branches"):
        play_selector(build_selector("metasd_ucb", ["a", "b"], 4), counterfactual)


@pytest.mark.parametrize("name", ["router", "hedgespec"])
def test_a_router_s_advice_is_replayed(recorded, name):
    advice = [np.eye(6)[2], np.eye(6)[0], np.eye(6)[5]]
    options = {"prior": 4} if name == "hedgespec" else {}
    played = replace(recorded, advice=advice).run(recorded.maker(name, **options))
    assert [cycles[0].drafter for cycles in played] == [2, 0, 5]


@pytest.mark.slow
def test_the_replay_of_each_drafter_alone_equals_its_decoding(everything, recorded):
    target, drafters, shapes, _ = everything
    for number, name in enumerate(recorded.names):
        engine = Engine(target, drafters[name], shapes.get(name, SHAPE))
        for answer, cycles in zip(engine.generate(PROMPTS, COUNT), recorded.alone(number), strict=True):
            assert [cycle.accept_length for cycle in answer.cycles] == [cycle.accept_length for cycle in cycles]


def counterfactual_of(lengths: list[list[int]], begin: int = 2) -> Counterfactual:
    """A counterfactual of given accept lengths by drafter and root, without evaluations."""
    table = np.array(lengths)
    outcomes = CycleOutcomes.undrafted(2, table.shape[1] - 1 - begin)
    outcomes = replace(outcomes, accept_length=table[:, begin:-1])
    return Counterfactual(["a", "b"], [4, 4], begin, table.shape[1], [outcomes], np.zeros(table.shape))


def test_regret_is_counted_against_the_best_drafter_of_each_answer():
    first = counterfactual_of([[0, 0, 2, 2, 2, 2, 2, 2, 2], [0, 0, 1, 1, 1, 1, 1, 1, 1]])
    second = counterfactual_of([[0, 0, 1, 1, 1, 1, 1], [0, 0, 4, 4, 4, 4, 4]])
    recorded = RecordedAnswers.of([first, second, counterfactual_of([[1] * 3] * 2)], [[1], [2], [3]])
    assert recorded.indices == [0, 1] and recorded.static.tolist() == [[3, 6], [4, 1]]
    assert recorded.tokens.tolist() == [6, 4]
    best = recorded.figures(recorded.hindsight())
    assert best["regret_cycles"] == 0 and best["of_hindsight"] == 1 and best["mat"] == 10 / 4
    alone = recorded.figures(recorded.alone(0))
    assert alone["regret_cycles"] == 1.5 and alone["regret_tokens"] == 3 * 4 / 2 and alone["mat"] == 10 / 7
    assert alone["of_hindsight"] == (1 + 1 / 4) / 2 and alone["share_on_best"] == 3 / 7
    assert alone["switches_per_cycle"] == 0
    assert recorded.paired_p(recorded.hindsight(), recorded.hindsight()) is None
    assert 0 < recorded.paired_p(recorded.hindsight(), recorded.alone(0)) <= 1


def test_tuning_chooses_the_constants_with_the_fewest_cycles(recorded):
    grids = {"ucb1": {"c": (0.0, 0.1, 5.0)}}
    best = tune_options(recorded, "ucb1", grids)
    totals = {c: sum(map(len, recorded.run(recorded.maker("ucb1", c=c)))) for c in grids["ucb1"]["c"]}
    assert totals[best["c"]] == min(totals.values())
    assert tune_options(recorded, "normalhedge", grids) == {}


@pytest.mark.parametrize("name", [name for name in names() if name not in ("static", "router", "oracle")])
def test_every_selector_replays(recorded, name):
    figures = recorded.figures(recorded.run(recorded.maker(name)))
    assert figures["regret_cycles"] >= -0.5 and 1 <= figures["mat"] <= 7


def test_answers_without_a_second_token_cannot_be_compared():
    with pytest.raises(DrafterforgeError, match="none of 1 answers has a second token"):
        RecordedAnswers.of([counterfactual_of([[1] * 3] * 2)], [[1]])
